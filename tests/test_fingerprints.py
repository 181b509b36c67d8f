"""Fingerprints against a brute-force reference: the keyed hash of every prefix, computed from its start each time."""

from array import array
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_cache.config import read_config
from otel_cache.errors import UsageError
from otel_cache.fingerprints import Chain, digest, key_id, load_key
from otel_cache.semconv.grid import common_grid

KEY = b"k" * 32
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=700)


def prefix(tokens: list[int], end: int, key: bytes = KEY) -> bytes:
    """Return the keyed hash of the first `end` tokens."""
    return sha256(key.ljust(64, b"\0") + array("i", tokens[:end]).tobytes()).digest()[:8]


@given(TOKENS, st.sampled_from([1, 3, 16, 64, 100]), st.integers(0, 3), st.lists(st.integers(0, 700), max_size=4))
def test_chain(tokens: list[int], step: int, lookahead: int, stops: list[int]) -> None:
    """However a chain grew, its fingerprints are those of the prefixes, lookahead included."""
    chain = Chain(KEY, step, lookahead)
    for stop in sorted(min(stop, len(tokens)) for stop in stops):
        chain.extend(tokens, stop)
    assert chain.whole(tokens, len(tokens)) == prefix(tokens, len(tokens))
    positions = range(step, max(len(tokens) - lookahead, 0) + 1, step)
    assert chain.upto == (positions[-1] if positions else 0)
    assert bytes(chain.values) == b"".join(prefix(tokens, p + lookahead) for p in positions)
    assert chain.common(0, len(tokens)) == b"".join(prefix(tokens, p) for p in common_grid(0, len(tokens)))
    for position in positions:
        assert chain.at(position) == prefix(tokens, position + lookahead)


@given(TOKENS, TOKENS, TOKENS)
def test_equal_where_the_prefix_is(shared: list[int], one: list[int], other: list[int]) -> None:
    """Two prompts agree exactly as far as their tokens do."""
    first, second = shared + one, shared + other
    chains = []
    for tokens in (first, second):
        chain = Chain(KEY, 16, 0)
        chain.extend(tokens, len(tokens))
        chains.append(chain)
    for position in range(16, min(len(first), len(second)) + 1, 16):
        same = first[:position] == second[:position]
        assert (chains[0].at(position) == chains[1].at(position)) is same


def test_items_part_prompts() -> None:
    """Two prompts whose second image differs agree up to that image and no further."""
    tokens = [7] * 256
    chains = []
    for image in (b"cat", b"dog"):
        chain = Chain(KEY, 16, 0, [(40, b"bird"), (100, image)])
        chain.extend(tokens, len(tokens))
        chains.append(chain)
    agree = [p for p in range(16, 257, 16) if chains[0].at(p) == chains[1].at(p)]
    assert agree == [16, 32, 48, 64, 80, 96]


def test_another_key_another_fingerprint() -> None:
    """Without the key nothing can be tried out."""
    chains = [Chain(key, 4, 0) for key in (KEY, b"j" * 32)]
    for chain in chains:
        chain.extend([1, 2, 3, 4], 4)
    assert chains[0].at(4) != chains[1].at(4)
    assert key_id(KEY) != key_id(b"j" * 32)


def test_parts_of_a_digest_do_not_run_together() -> None:
    """A LoRA named `ab` with path `c` is not one named `a` with path `bc`."""
    assert digest(KEY, b"ab", b"c") != digest(KEY, b"a", b"bc")


def test_key_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable, a file, or a key that is made once for this user and never readable by others."""
    by_text = load_key(read_config({"OTEL_PYTHON_VLLM_CACHE_FINGERPRINT_KEY": "secret"}))
    file = tmp_path / "key"
    file.write_text("secret\n")
    by_file = load_key(read_config({"OTEL_PYTHON_VLLM_CACHE_FINGERPRINT_KEY_FILE": str(file)}))
    assert by_text == by_file
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kept = load_key(read_config({}))
    assert kept == load_key(read_config({}))
    assert (tmp_path / "state/otel-cache/fingerprint.key").stat().st_mode & 0o777 == 0o600
    file.write_text("")
    with pytest.raises(UsageError, match="is empty"):
        load_key(read_config({"OTEL_PYTHON_VLLM_CACHE_FINGERPRINT_KEY_FILE": str(file)}))
    with pytest.raises(UsageError, match="No such file"):
        load_key(read_config({"OTEL_PYTHON_VLLM_CACHE_FINGERPRINT_KEY_FILE": str(tmp_path / "none")}))
