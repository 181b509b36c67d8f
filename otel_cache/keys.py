"""The key of the fingerprints, and digests under it."""

import os
from hashlib import blake2b
from pathlib import Path

from otel_cache.config import Config
from otel_cache.errors import UsageError
from otel_cache.records import FINGERPRINT_BYTES

KEY_BYTES = 32


def load_key(config: Config) -> bytes:
    """Return the key of the fingerprints: from the configuration, else a random one kept for this host's user.

    Raises:
        UsageError: the key file cannot be read or is empty.

    """
    if config.fingerprint_key is not None:
        return blake2b(config.fingerprint_key.encode(), digest_size=KEY_BYTES).digest()
    if config.fingerprint_key_file is not None:
        try:
            text = Path(config.fingerprint_key_file).read_bytes().strip()
        except OSError as error:
            raise UsageError(f"fingerprint key file {config.fingerprint_key_file}: {error.strerror}") from error
        if not text:
            raise UsageError(f"fingerprint key file {config.fingerprint_key_file} is empty")
        return blake2b(text, digest_size=KEY_BYTES).digest()
    return _host_key()


def host_key_path() -> Path:
    """Return where this user's random key on this host is kept.

    Raises:
        RuntimeError: the user has no home, and no other place is named.

    """
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "otel-cache" / "fingerprint.key"


def _host_key() -> bytes:
    """Return this user's key on this host, made on first use; a private one where it cannot be kept."""
    try:
        path = host_key_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written aside and linked, so that processes that start at once agree and none reads half a key.
        aside = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        if not path.exists():
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
            try:
                os.link(aside, path)
            except FileExistsError:
                pass
            finally:
                aside.unlink()
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    except (OSError, RuntimeError):
        pass
    return os.urandom(KEY_BYTES)


def key_id(key: bytes) -> str:
    """Return a short public name of `key`; fingerprints under different names never compare."""
    return blake2b(b"key id", key=key, digest_size=4).hexdigest()


def digest(key: bytes, *parts: bytes) -> bytes:
    """Return the keyed digest (8 bytes) of `parts`, each with its length, so that parts cannot run together."""
    hasher = blake2b(key=key, digest_size=FINGERPRINT_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.digest()
