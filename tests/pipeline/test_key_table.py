"""The table of keys against a plain dictionary, whatever comes and goes in runs of any length."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from otel_cache.bindings.key_table import KeyTable
from otel_cache.fingerprints import SUMS_BYTES
from otel_cache.records import FINGERPRINT_BYTES

KEYS = 40
RUN = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=30, unique=True)
STORE = st.tuples(st.just("store"), RUN, st.integers(0, 2), st.sampled_from([b"", b"salted"]))
REMOVE = st.tuples(st.just("remove"), RUN)


@given(st.lists(st.one_of(STORE, REMOVE, st.just(("clear",))), max_size=30), st.integers(1, KEYS))
def test_it_says_what_was_stored_last(steps, capacity):
    """What it holds, and what it says of keys that leave, is what was stored last under each; it grows."""
    table, expected = KeyTable(capacity), {}
    for time, step in enumerate(steps):
        if step[0] == "store":
            _, keys, group, extra = step
            prints = {key: (1 + 100 * time + key).to_bytes(FINGERPRINT_BYTES, "little") for key in keys}
            sums = {key: (7 * time + key, key) for key in keys}
            packed = b"".join(one.to_bytes(8, "little") + other.to_bytes(8, "little") for one, other in sums.values())
            assert len(packed) == SUMS_BYTES * len(keys)
            table.add(
                [b"key %d" % key for key in keys], group, [16 * key for key in keys], b"".join(prints.values()),
                packed, extra, time,
            )  # fmt: skip
            expected |= {key: (group, 16 * key, prints[key], extra, time, sums[key]) for key in keys}
        elif step[0] == "remove":
            keys = step[1]
            lost, unknown = table.remove([b"key %d" % key for key in keys], [1000 + key for key in keys], time)
            assert sorted(unknown) == [index for index, key in enumerate(keys) if key not in expected]
            told = Counter()
            for one in lost:
                count = len(one.positions)
                prints = [one.fingerprints[at : at + 8] for at in range(0, 8 * count, 8)]
                extras = one.extras or [b""] * count
                rows = zip(one.positions, prints, extras, one.ages, one.blocks, strict=True)
                told.update((one.group, *row) for row in rows)
            gone = {key: expected.pop(key) for key in keys if key in expected}
            assert told == Counter(
                (group, position, value, extra, time - since, 1000 + key)
                for key, (group, position, value, extra, since, _) in gone.items()
            )
        else:
            table.clear()
            expected.clear()
        assert len(table) == len(expected)
        for key in range(KEYS):
            known = expected.get(key)
            assert table.find(b"key %d" % key) == ((known[2], known[5]) if known else None)
            assert table.fingerprint(b"key %d" % key) == (known[2] if known else b"")
