"""The ladder by brute force, over the tokens themselves, for full attention with or without Mamba groups of its block.

It shares nothing with the analyzer but the order of the events and the reading of positions. Prefixes are named by a
digest of their tokens and key; what is held is a set per replica and group.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from analyzers.events import Evicted, Stored, events_of, timeline
from analyzers.model import Capture
from analyzers.vllm_lab.scenario import Scenario, batches
from analyzers.vllm_lab.tokens import output, segment
from otel_cache.semconv.positions import parse_positions

Prefix = tuple[str, int]


def reference(capture: Capture, scenario: Scenario) -> dict[str, Mapping[str, int]]:
    """Return what each request lost, per class, at its first admitted lookup."""
    sent = {sending.id: sending for batch in batches(scenario) for sending in batch}
    tokens = {
        name: [t for part in sending.request.prompt for t in segment(part.segment, part.tokens)]
        + output(name, sending.request.output_tokens)
        for name, sending in sent.items()
    }
    keys = {name: f"{sending.request.cache_salt}/{sending.request.lora}" for name, sending in sent.items()}
    unit = capture.lives[0].attributes["vllm.kv_cache.hash_block_size"]
    look = capture.lives[0].attributes["vllm.kv_cache.hash_lookahead_tokens"]
    drops = any(capture.lives[0].attributes["vllm.kv_cache.groups.drops_for_speculation"])
    beyond = capture.lives[0].attributes["vllm.kv_cache.proof_limit"] == "block_beyond"
    kinds = capture.lives[0].attributes["vllm.kv_cache.groups.kind"]
    dense = kinds.index("full_attention")

    def prefix(name: str, end: int) -> Prefix:
        """Name the first `end` blocks of a request, with the tokens that their key covers beyond."""
        data = array("i", tokens[name][: end * unit + look]).tobytes()
        return hashlib.sha256(keys[name].encode() + data).hexdigest(), end

    def named(name: str, n: int, stored: int) -> set[int]:
        """Return the lengths at which fingerprints name `n` tokens of a lookup, and what was stored up to `stored`."""
        blocks = {end + look for end in range(unit, max(n, stored) + 1, unit)}
        grid = {64, 128, *range(256, n + 1, 256), n}
        return {end for end in blocks if end <= max(n, stored)} | {end for end in grid if end <= n}

    def common(one: str, other: str, limit: int) -> int:
        pairs = zip(tokens[one][:limit], tokens[other][:limit], strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(limit, len(tokens[other])))

    events = list(_events(capture))
    by_fingerprint: dict[tuple[bytes, bytes], Prefix] = {}
    held: dict[tuple[int, int], set[Prefix]] = {}
    ever: dict[tuple[int, int], set[Prefix]] = {}
    fate: dict[tuple[int, int, Prefix], str] = {}
    known: dict[str, tuple[int, int]] = {}
    lost: dict[str, Mapping[str, int]] = {}
    done: set[str] = set()
    for now, event in enumerate(events):  # noqa: B007 (read through locals)
        row, life = event.row, event.life
        if event.kind == "evict":
            for i in range(0, len(row["fingerprints"]), 8):
                key = row["keys"][i : i + 8] if row["keys"] else b""
                found = by_fingerprint.get((row["fingerprints"][i : i + 8], key.strip(b"\0") and key))
                if found:
                    held.setdefault((life, row["group"]), set()).discard(found)
                    fate[life, row["group"], found] = "evicted"
            continue
        name = row["request_id"]
        if event.kind == "store":
            if row["values"]:
                _learn(by_fingerprint, row, row["first"] // unit, name, prefix, key_of(events, name))
                end = row["first"] + len(row["values"]) // 8 * unit - unit + look
                known[name] = (known[name][0], max(known[name][1], end))
            for column in ("stored", "masked", "not_materialized"):
                for end in (p // unit for run in parse_positions(row[column]) for p in run):
                    state = (life, row["group"])
                    if column == "stored":
                        held.setdefault(state, set()).add(prefix(name, end))
                        ever.setdefault(state, set()).add(prefix(name, end))
                        fate.pop((*state, prefix(name, end)), None)
                    elif prefix(name, end) not in held.get(state, ()) and (
                        fate.get((*state, prefix(name, end))) != "masked" or column == "masked"
                    ):
                        fate[*state, prefix(name, end)] = column
            continue
        n = row["prompt_tokens"]
        _learn(by_fingerprint, row, row["first"] // unit if row["first"] else 1, name, prefix, row["key"])
        if name not in done:
            lost[name] = _walk(locals())
            done |= {name} if row["admitted"] else set()
        known[name] = (max(known.get(name, (0, 0))[0], n), known.get(name, (0, 0))[1])
    return lost


class _Event(NamedTuple):
    """An event of one group."""

    time: int
    life: int
    kind: str
    row: Mapping[str, Any]


def _events(capture: Capture) -> Iterator[_Event]:
    for time, life, row, _, _ in events_of(timeline(capture), capture):
        if isinstance(row, Stored):
            for group in row.groups:
                yield _Event(time, life, "store", {**row._asdict(), "group": group, "request_id": row.request})
        elif isinstance(row, Evicted):
            yield _Event(time, life, "evict", row._asdict())
        else:
            yield _Event(time, life, "lookup", row)


def key_of(events: Any, name: str) -> bytes:
    """Return the key digest that a request's lookups carry."""
    return next(e.row["key"] for e in events if e.kind == "lookup" and e.row["request_id"] == name)


def _learn(by: Any, row: Mapping[str, Any], first: int, name: str, prefix: Any, key: bytes) -> None:
    for i in range(0, len(row["values"]), 8):
        by[row["values"][i : i + 8], key] = prefix(name, first + i // 8)


def _walk(at: Mapping[str, Any]) -> Mapping[str, int]:
    """Walk down from the prompt; `at` are the names above, at one lookup."""
    name, n, unit, life, dense, now = (at[key] for key in ("name", "n", "unit", "life", "dense", "now"))
    limit, held, ever, fate, prefix = at["row"]["max_hit_tokens"], at["held"], at["ever"], at["fate"], at["prefix"]
    lost: Counter[str] = Counter()

    def shared(same_key: bool) -> int:
        longest = 0
        for other, known in at["known"].items():
            if other != name and (not same_key or at["keys"][other] == at["keys"][name]):
                exact = at["common"](name, other, n)
                both = at["named"](name, n, 0) & at["named"](other, *known)
                longest = max([longest, *(end for end in both if end <= exact)])
        return longest

    def run(of: Any, life: int, top: int) -> int:
        blocks = 0
        while (blocks + 1) * unit <= top and prefix(name, blocks + 1) in of.get((life, dense), ()):
            blocks += 1
        return blocks * unit

    def kept(group: int, end: int) -> bool:
        return (
            prefix(name, end) in held.get((life, group), ()) or fate.get((life, group, prefix(name, end))) == "evicted"
        )

    lives = range(len(at["capture"].lives))
    b1 = shared(True)
    lost["cold"] = n - max(b1, shared(False))
    lost["key_difference"] = n - lost["cold"] - b1
    b2 = max(0, min(limit, b1 - at["look"])) // unit * unit
    lost["tail" if b2 else "alignment"] += b1 - b2
    b3 = max(run(ever, each, b2) for each in lives)
    if b3 < b2:
        looked = {e.row["request_id"] for e in at["events"][: now + 1] if e.kind == "lookup"} - {name}
        later = [
            p
            for e in at["events"][now + 1 :]
            if e.kind == "store"
            and e.row["request_id"] in looked
            and e.row["group"] == dense
            and e.time > at["event"].time
            for r in parse_positions(e.row["stored"])
            for p in r
            if p <= b2 and prefix(e.row["request_id"], p // unit) == prefix(name, p // unit)
        ]
        soon = max([b3, *later])
        lost["in_flight"] = soon - b3
        lost["alignment" if b2 - soon < unit else "not_materialized"] += b2 - soon
    b4, local, once = max(run(held, each, b3) for each in lives), run(held, life, b3), run(ever, life, b3)
    lost["evicted"] = b3 - b4 + max(0, min(once, b4) - local)
    lost["held_elsewhere"] = b4 - max(local, min(once, b4))
    top = min(n // unit * unit if at["beyond"] and len(at["kinds"]) > 1 else limit, limit + unit)
    b6 = min(local, max(0, run(held, life, top) - unit)) if at["drops"] else local
    lost["speculative_drop"] = local - b6
    sparse = [group for group in range(len(at["kinds"])) if group != dense]

    def agreed(position: int) -> bool:
        return all(prefix(name, position // unit) in held.get((life, group), ()) for group in sparse)

    b7 = next((p for p in range(b6, 0, -unit) if agreed(p)), 0)
    whole = next((p for p in range(0, top, unit) if not kept(dense, p // unit + 1)), top // unit * unit)
    whole = min(limit, whole - unit if at["drops"] else whole, b3)
    intact = next((p for p in range(whole // unit * unit, 0, -unit) if all(kept(g, p // unit) for g in sparse)), 0)
    if b7 < b6 < intact:
        went = any(prefix(name, intact // unit) not in held.get((life, group), ()) for group in sparse)
        lost["checkpoint_evicted" if went else "evicted"] += b6 - b7
    elif b7 < b6:
        fates = {
            fate.get((life, group, prefix(name, b6 // unit)), "not_materialized")
            for group in sparse
            if prefix(name, b6 // unit) not in held.get((life, group), ())
        }
        order = {"not_materialized": "not_materialized", "masked": "shifted_boundary", "evicted": "checkpoint_evicted"}
        lost[next(cls for state, cls in order.items() if state in fates)] += b6 - b7
    return {cls: tokens for cls, tokens in lost.items() if tokens}
