"""Fingerprints against a brute-force reference: the formula, worked out for every prefix from its start each time."""

import struct
from hashlib import blake2b
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from otel_cache.config import read_config
from otel_cache.errors import UsageError
from otel_cache.fingerprints import Chain, Printer, read_sums
from otel_cache.keys import digest, key_id, load_key
from otel_cache.semconv.grid import common_count, common_grid, common_mark

KEY = b"k" * 32
PRINTER = Printer(KEY)
TOKENS = st.lists(st.integers(-1, 2**31 - 1), max_size=700)
ITEMS = st.lists(st.tuples(st.integers(0, 700), st.binary(max_size=9)), max_size=3)


def prefix(tokens: list[int], end: int, items: list[tuple[int, bytes]] | None = None) -> bytes:
    """Return the fingerprint of the first `end` tokens, by the formula."""
    stream = cipher("weights", modes.CTR(bytes(16))).update(bytes(16 * end))
    weights = struct.unpack(f"<{2 * end}Q", stream)
    sums = [0, 0]
    for row in (0, 1):
        sums[row] = sum(
            (token % 2**32 + 1) * weight for token, weight in zip(tokens[:end], weights[row::2], strict=True)
        )
        for offset, identifier in items or []:
            if offset < end:
                drawn = blake2b(offset.to_bytes(8, "big") + identifier, key=KEY, digest_size=16).digest()
                sums[row] += int.from_bytes(drawn[8 * row : 8 * row + 8], "big")
    return cipher("function", modes.ECB()).update(struct.pack("<2Q", *(each % 2**64 for each in sums)))[:8]


def cipher(purpose: str, mode: modes.Mode):  # type: ignore[no-untyped-def]
    """Return the encryptor for one use of the key."""
    return Cipher(algorithms.AES(blake2b(purpose.encode(), key=KEY, digest_size=16).digest()), mode).encryptor()


@given(
    TOKENS, st.sampled_from([1, 3, 16, 64, 100]), st.integers(0, 3), st.lists(st.integers(0, 700), max_size=4), ITEMS
)
def test_chain(tokens: list[int], step: int, lookahead: int, stops: list[int], items: list[tuple[int, bytes]]) -> None:
    """However a chain grew, its fingerprints are those of the prefixes, lookahead and items included."""
    chain = Chain(PRINTER, step, lookahead, items)
    for stop in sorted(min(stop, len(tokens)) for stop in stops):
        chain.extend(tokens, stop)
    chain.extend(tokens, len(tokens))
    assert chain.whole() == prefix(tokens, len(tokens), items)
    positions = range(step, max(len(tokens) - lookahead, 0) + 1, step)
    last = positions[-1] if positions else 0
    assert chain.upto == last
    assert chain.between(0, last) == b"".join(prefix(tokens, p + lookahead, items) for p in positions)
    grid = common_grid(0, len(tokens))
    assert chain.common(0, len(tokens)) == b"".join(prefix(tokens, p, items) for p in grid)
    assert chain.plain(0, len(tokens)) == (b"".join(prefix(tokens, p) for p in grid) if items else b"")
    for position in positions:
        assert chain.at(position) == prefix(tokens, position + lookahead, items)


@given(TOKENS, st.sampled_from([1, 16, 100]), st.integers(0, 3), st.data(), ITEMS)
def test_resumed(
    tokens: list[int], step: int, lookahead: int, data: st.DataObject, items: list[tuple[int, bytes]]
) -> None:
    """A chain that goes on from another's sums has what the other would have had."""
    whole = Chain(PRINTER, step, lookahead, items)
    whole.extend(tokens, len(tokens))
    if not whole.upto:
        return
    position = step * data.draw(st.integers(1, whole.upto // step))
    resumed = Chain(PRINTER, step, lookahead, items)
    resumed.resume(position, read_sums(whole.sums_between(position - step, position)))
    resumed.extend(tokens, len(tokens))
    assert resumed.upto == whole.upto
    assert resumed.between(position, whole.upto) == whole.between(position, whole.upto)
    assert resumed.sums_between(position, whole.upto) == whole.sums_between(position, whole.upto)
    assert resumed.common(position + lookahead, len(tokens)) == whole.common(position + lookahead, len(tokens))
    assert resumed.whole() == whole.whole()


@given(TOKENS, st.integers(1, 64), st.integers(0, 3))
def test_resumed_from_nothing(tokens: list[int], step: int, lookahead: int) -> None:
    """A chain that begins anew covers its first tokens too, whatever its keys look ahead."""
    whole, again = Chain(PRINTER, step, lookahead), Chain(PRINTER, step, lookahead)
    for chain in (whole, again):
        chain.extend(tokens, len(tokens))
    again.resume(0, (0, 0))
    again.extend(tokens, len(tokens))
    assert (again.whole(), again.between(0, again.upto)) == (whole.whole(), whole.between(0, whole.upto))


@given(TOKENS, TOKENS, TOKENS)
def test_equal_where_the_prefix_is(shared: list[int], one: list[int], other: list[int]) -> None:
    """Two prompts agree exactly as far as their tokens do."""
    first, second = shared + one, shared + other
    chains = []
    for tokens in (first, second):
        chain = Chain(PRINTER, 16)
        chain.extend(tokens, len(tokens))
        chains.append(chain)
    for position in range(16, min(len(first), len(second)) + 1, 16):
        same = first[:position] == second[:position]
        assert (chains[0].at(position) == chains[1].at(position)) is same


@pytest.mark.parametrize("length", [4096, 4097, 12_288, 20_000])
def test_long_prompts(length: int) -> None:
    """Slices and more weights change nothing; a prompt with zeros behind it is another one."""
    tokens = [7 * number % 150_000 for number in range(length)]
    chain = Chain(PRINTER, 16)
    chain.extend(tokens, length)
    assert chain.at(length // 16 * 16) == prefix(tokens, length // 16 * 16)
    longer = Chain(PRINTER, 16)
    longer.extend([*tokens, 0, 0], length + 2)
    assert longer.whole() != chain.whole() == prefix(tokens, length)


def test_items_part_prompts() -> None:
    """Two prompts whose second image differs agree up to that image and no further, and in their tokens all along."""
    tokens = [7] * 256
    chains = []
    for image in (b"cat", b"dog"):
        chain = Chain(PRINTER, 16, 0, [(40, b"bird"), (100, image)])
        chain.extend(tokens, len(tokens))
        chains.append(chain)
    agree = [p for p in range(16, 257, 16) if chains[0].at(p) == chains[1].at(p)]
    assert agree == [16, 32, 48, 64, 80, 96]
    assert chains[0].plain(0, 256) == chains[1].plain(0, 256)


def test_another_key_another_fingerprint() -> None:
    """Without the key nothing can be tried out."""
    chains = [Chain(Printer(key), 4) for key in (KEY, b"j" * 32)]
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


@given(after=st.integers(-1000, 1000), upto=st.integers(-300, 2000))
def test_a_mark_of_the_common_grid_is_found_without_the_rest(after: int, upto: int) -> None:
    """So is how many there are."""
    grid = common_grid(after, upto)
    assert grid == [each for each in (64, 128, *range(256, 2001, 256)) if after < each <= upto]
    assert common_count(after, upto) == len(grid)
    assert [common_mark(after, place) for place in range(len(grid))] == grid
