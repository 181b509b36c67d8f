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
SOCKET_UIDS = PREFIX + "SOCKET_UIDS"
SPOOL = PREFIX + "SPOOL"
SPOOL_BYTES = PREFIX + "SPOOL_BYTES"
EXPORT = PREFIX + "EXPORT"
STEP_SHARE = PREFIX + "STEP_SHARE"
DISABLED_INSTRUMENTATIONS = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
SDK_DISABLED = "OTEL_SDK_DISABLED"
PLUGINS = "VLLM_PLUGINS"
VARIABLES = frozenset(
    {
        *(ENABLED, SOCKET, OUT, REPLICA_ID, FINGERPRINT_KEY, FINGERPRINT_KEY_FILE, DISABLED_HOOKS),
        *(SOCKET_UIDS, SPOOL, SPOOL_BYTES, EXPORT, STEP_SHARE),
    }
)
"""All that begin with our prefix."""

PLUGIN = "otel_cache"
"""Name of the entry point that vLLM loads, in its list of plugins."""
INSTRUMENTATION = "vllm_cache"
"""Name of the entry point that `opentelemetry-instrument` loads."""


@dataclass(frozen=True)
class Config:
    """What the environment asks of the instrumentation.

    Attributes:
        enabled: whether vLLM is to be instrumented: asked for, and not forbidden by OpenTelemetry's own variables.
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
        enabled=is_true(environ.get(ENABLED)) and forbidden_by(environ) is None,
        socket=environ.get(SOCKET) or None,
        out=environ.get(OUT) or None,
        replica_id=environ.get(REPLICA_ID) or None,
        fingerprint_key=environ.get(FINGERPRINT_KEY) or None,
        fingerprint_key_file=environ.get(FINGERPRINT_KEY_FILE) or None,
        disabled_hooks=frozenset(name.strip() for name in disabled.split(",") if name.strip()),
    )


def is_true(value: str | None) -> bool:
    """Whether a variable says `true`, in any case, as OpenTelemetry reads booleans."""
    return (value or "").strip().lower() == "true"


def unclear(value: str | None) -> bool:
    """Whether a variable that is to be `true` or `false` is set, and says neither: it counts as `false`."""
    return (value or "").strip().lower() not in ("", "true", "false")


def forbidden_by(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable of OpenTelemetry that keeps this instrumentation off, None where none does."""
    if is_true(environ.get(SDK_DISABLED)):
        return SDK_DISABLED
    disabled = {name.strip() for name in environ.get(DISABLED_INSTRUMENTATIONS, "").split(",")}
    return DISABLED_INSTRUMENTATIONS if disabled & {INSTRUMENTATION, "*"} else None


def admits_plugin(plugins: str | None) -> bool:
    """Whether vLLM loads our plugin with this value of `VLLM_PLUGINS`; an empty list means: no plugin at all."""
    return plugins is None or PLUGIN in plugins.split(",")


def with_plugin(plugins: str) -> str:
    """Return a value of `VLLM_PLUGINS` with our plugin in it."""
    return plugins if admits_plugin(plugins) else ",".join([*filter(None, plugins.split(",")), PLUGIN])
