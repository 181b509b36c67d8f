"""Where the key of the fingerprints comes from, and who may read it. The key itself is never shown."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from analyzers.doctor.checks import Check, ok, problem, warning
from otel_cache.config import FINGERPRINT_KEY, FINGERPRINT_KEY_FILE, Config, read_config
from otel_cache.errors import UsageError

NAME = "fingerprint key"
OTHER_HOSTS = "replicas of other hosts compare only with the same key"


def check_key(environ: Mapping[str, str]) -> Check:
    """Return what is to be said of the key."""
    config = read_config(environ)
    if config.fingerprint_key is not None:
        return ok(NAME, f"from {FINGERPRINT_KEY}, key id {_identifier(config)}")
    if config.fingerprint_key_file is not None:
        try:
            identifier = _identifier(config)
        except UsageError as error:
            return problem(NAME, str(error), f"write a key into it, or unset {FINGERPRINT_KEY_FILE}", untraced=True)
        text = f"from {config.fingerprint_key_file}, key id {identifier}"
        return _private(Path(config.fingerprint_key_file), text)
    return _host_key()


def _identifier(config: Config) -> str:
    from otel_cache.keys import key_id, load_key

    return key_id(load_key(config))


def _private(path: Path, text: str) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        return warning(NAME, f"{text}; others may read or change it (mode {mode:03o})", f"chmod 600 {path}")
    return ok(NAME, text)


def _host_key() -> Check:
    from otel_cache.keys import KEY_BYTES, host_key_path, key_id

    try:
        path = host_key_path()
    except RuntimeError:
        todo = f"set {FINGERPRINT_KEY} or {FINGERPRINT_KEY_FILE}"
        return warning(NAME, "this user has no home: each process makes a key of its own, and none compare", todo)
    if not path.exists():
        if os.access(_existing(path), os.W_OK):
            return ok(NAME, f"a random one will be kept in {path}; {OTHER_HOSTS}")
        says = f"{path} cannot be made: each process makes a key of its own, and none compare"
        return warning(NAME, says, f"make {path.parent} writable, or set {FINGERPRINT_KEY_FILE}")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        says = f"{path} is damaged: each process makes a key of its own, and none compare"
        return problem(NAME, says, f"remove {path}")
    return _private(path, f"random, kept in {path}, key id {key_id(key)}; {OTHER_HOSTS}")


def _existing(path: Path) -> Path:
    """Return the nearest folder above `path` that exists."""
    return next(parent for parent in path.parents if parent.exists())
