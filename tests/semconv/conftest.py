"""A real sidecar, as in the sidecar's own tests."""

from sidecar.conftest import _plain_environment, socket_path, start

__all__ = ["_plain_environment", "socket_path", "start"]
