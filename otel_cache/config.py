"""The environment variables that steer the instrumentation, read in one place."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "OTEL_PYTHON_VLLM_CACHE_"
ENABLED = PREFIX + "ENABLED"
SOCKET = PREFIX + "SOCKET"
OUT = PREFIX + "OUT"
REPLICA_ID = PREFIX + "REPLICA_ID"
FINGERPRINT_KEY = PREFIX + "FINGERPRINT_KEY"
FINGERPRINT_KEY_FILE = PREFIX + "FINGERPRINT_KEY_FILE"
DISABLED_HOOKS = PREFIX + "DISABLED_HOOKS"


@dataclass(frozen=True)
class Config:
    """What the environment asks of the instrumentation.

    Attributes:
        enabled: whether vLLM is to be instrumented.
        socket: path of the sidecar's Unix socket; None: the embedded default of this user.
        out: file that an automatically started sidecar writes the evidence to; None: none.
        replica_id: stable name of this replica; None: host name and data-parallel index.
        fingerprint_key: key of the fingerprints, as text; None: see `fingerprint_key_file`.
        fingerprint_key_file: file that holds the key; None: a random key kept for this user on this host.
        disabled_hooks: names of hooks that are to be left out.

    """

    enabled: bool
    socket: str | None
    out: str | None
    replica_id: str | None
    fingerprint_key: str | None
    fingerprint_key_file: str | None
    disabled_hooks: frozenset[str]


def read_config(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration from `environ`; an empty variable counts as unset."""
    disabled = environ.get(DISABLED_HOOKS, "")
    return Config(
        enabled=environ.get(ENABLED, "").strip().lower() == "true",
        socket=environ.get(SOCKET) or None,
        out=environ.get(OUT) or None,
        replica_id=environ.get(REPLICA_ID) or None,
        fingerprint_key=environ.get(FINGERPRINT_KEY) or None,
        fingerprint_key_file=environ.get(FINGERPRINT_KEY_FILE) or None,
        disabled_hooks=frozenset(name.strip() for name in disabled.split(",") if name.strip()),
    )
