"""Servers and sidecars for doctor's tests are those of the sidecar's tests."""

from sidecar.conftest import _plain_environment, collector, http_collector, socket_path, start

__all__ = ["_plain_environment", "collector", "http_collector", "socket_path", "start"]
