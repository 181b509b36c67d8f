"""What earlier requests had of a prompt is what a search through all that was named before finds."""

from hypothesis import given
from hypothesis import strategies as st

from analyzers.prompts import Prompt
from analyzers.seen import Acts
from analyzers.settings import read_settings

from .test_views import ATTRIBUTES, UNIT

SETTINGS = read_settings(ATTRIBUTES, "a test")
requests = st.integers(0, 3)
tokens = st.lists(st.integers(1, 3), max_size=5)


def chain_of(words: list[int]) -> list[int]:
    """Return an identity for each prefix of `words`: equal where the prefixes are."""
    return [hash(tuple(words[: length + 1])) & (2**63 - 1) | 1 for length in range(len(words))]


@given(st.lists(st.tuples(requests, st.booleans(), tokens), max_size=12))
def test_the_longest_prefix_and_whose_it_was(told: list[tuple[int, bool, list[int]]]) -> None:
    """A request stores with and without a lookup of its own; what it named without one is nobody's lookup."""
    acts = Acts(keyed=False)
    named: list[tuple[int, int | None, set[int]]] = []
    latest: dict[int, int] = {}
    expected: list[tuple[int, int | None]] = []
    for request, looks_up, words in told:
        chain, name = chain_of(words), (0, f"r{request}")
        prompt = Prompt(chain, len(chain) * UNIT)
        if not looks_up:
            acts.store(name, prompt, 0)
            named.append((request, latest.get(request), set(chain)))
            continue
        acts.look_up(name, prompt, SETTINGS, 0, b"", b"")
        had = [
            (blocks, lookup)
            for blocks in range(len(chain), 0, -1)
            for owner, lookup, identities in reversed(named)
            if owner != request and chain[blocks - 1] in identities
        ]
        blocks, lookup = had[0] if had else (0, None)
        expected.append((blocks * UNIT, lookup))
        latest[request] = len(expected) - 1
        named.append((request, latest[request], set(chain)))

    assert [(one.same_key, one.relative) for one in acts.before()] == expected
