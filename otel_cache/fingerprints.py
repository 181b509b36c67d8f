"""Keyed fingerprints of prefixes: they tell where two prompts part, and nothing of what they hold.

The fingerprint of a position is the first 8 bytes of the SHA-256 of a secret block and every token before it, so two
requests with equal fingerprints at a position share their whole prefix up to there. Without the key nothing can be
tried out against them; cut to 8 bytes, none can be extended. SHA-256 because processors have instructions for it: on
blocks of 16 tokens it costs half of what BLAKE2 does. Multimodal items enter the hash at their offset.
"""

import os
import time
from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from otel_cache.config import Config
from otel_cache.errors import UsageError
from otel_cache.records import FINGERPRINT_BYTES
from otel_cache.semconv.grid import common_grid

KEY_BYTES = 32

_SLICE = 64
_TOKEN_TYPE = "i"
_TOKEN_BYTES = array(_TOKEN_TYPE).itemsize


def _encode(tokens: Sequence[int]) -> bytes:
    return array(_TOKEN_TYPE, tokens).tobytes()


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


class Chain:
    """The fingerprints of one request's tokens, computed once and extended as the request grows.

    Args:
        key: the key.
        step: tokens between fingerprints (the replica's hash block).
        lookahead: tokens beyond a position that its fingerprint covers too.
        items: (offset, identifier) of multimodal items, by ascending offset.

    """

    def __init__(self, key: bytes, step: int, lookahead: int, items: Sequence[tuple[int, bytes]] = ()) -> None:
        self._hasher = sha256(key.ljust(sha256().block_size, b"\0"))
        self._step = step
        self._lookahead = lookahead
        self._items = list(items)
        self._position = 0
        self._common: dict[int, bytes] = {}
        self.values = bytearray()

    @property
    def upto(self) -> int:
        """The last position that has a fingerprint, in tokens."""
        return len(self.values) // FINGERPRINT_BYTES * self._step

    def extend(self, tokens: Sequence[int], upto: int) -> None:
        """Compute the fingerprints of all positions whose tokens lie within the first `upto` of `tokens`."""
        first = self.upto + self._step + self._lookahead
        own = range(first, upto + 1, self._step)
        common = common_grid(self._position, upto)
        marks: Sequence[int] = own
        if any(mark not in own for mark in common):
            marks = sorted({*own, *common})
        for start in range(0, len(marks), _SLICE):
            if start:
                time.sleep(0)  # gives the interpreter back to the scheduler thread
            self._mark(tokens, marks[start : start + _SLICE], own)
        for mark in common:
            if mark in own:
                self._common[mark] = self.at(mark - self._lookahead)

    def _mark(self, tokens: Sequence[int], marks: Sequence[int], own: range) -> None:
        """Take the fingerprint at each of `marks`; those that are not the chain's own belong to the common grid."""
        begin, end = self._position, marks[-1]
        if self._items and self._items[0][0] < end:
            values = self._through_items(tokens, marks)
        else:
            data = memoryview(_encode(tokens[begin:end]))
            bounds = [0, *((mark - begin) * _TOKEN_BYTES for mark in marks)]
            update, copy = self._hasher.update, self._hasher.copy
            values = []
            for start, stop in pairwise(bounds):
                update(data[start:stop])
                values.append(copy().digest()[:FINGERPRINT_BYTES])
        self._position = end
        if isinstance(marks, range):
            self.values += b"".join(values)
            return
        for mark, value in zip(marks, values, strict=True):
            if mark in own:
                self.values += value
            else:
                self._common[mark] = value

    def _through_items(self, tokens: Sequence[int], marks: Sequence[int]) -> list[bytes]:
        values = []
        for start, mark in pairwise([self._position, *marks]):
            self._feed(self._hasher, tokens, start, mark)
            self._items = [item for item in self._items if item[0] >= mark]
            values.append(self._hasher.copy().digest()[:FINGERPRINT_BYTES])
        return values

    def whole(self, tokens: Sequence[int], upto: int) -> bytes:
        """Return the fingerprint of the first `upto` tokens, which must not lie before what is hashed already."""
        self.extend(tokens, upto)
        rest = self._hasher.copy()
        self._feed(rest, tokens, self._position, upto)
        return rest.digest()[:FINGERPRINT_BYTES]

    def at(self, position: int) -> bytes:
        """Return the fingerprint at `position`, empty where there is none."""
        end = position // self._step * FINGERPRINT_BYTES
        return bytes(self.values[end - FINGERPRINT_BYTES : end]) if position and not position % self._step else b""

    def between(self, after: int, upto: int) -> bytes:
        """Return the fingerprints of the positions in (after, upto], one after the other."""
        return bytes(self.values[after // self._step * FINGERPRINT_BYTES : upto // self._step * FINGERPRINT_BYTES])

    def common(self, after: int, upto: int) -> bytes:
        """Return the fingerprints of the common grid in (after, upto]; they cover no lookahead."""
        return b"".join(self._common[mark] for mark in common_grid(after, upto))

    def ladder(self, below: int) -> bytes:
        """Return the fingerprints at step, 2 * step, 4 * step, ... below `below`."""
        rungs = []
        position = self._step
        while position < below:
            rungs.append(self.at(position))
            position *= 2
        return b"".join(rungs)

    def _feed(self, hasher: Any, tokens: Sequence[int], start: int, end: int) -> None:
        for offset, identifier in self._items:
            if offset >= end:
                break
            hasher.update(_encode(tokens[start:offset]))
            hasher.update(b"item" + len(identifier).to_bytes(8, "big") + identifier)
            start = offset
        hasher.update(_encode(tokens[start:end]))
