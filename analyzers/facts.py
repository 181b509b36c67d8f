"""What the evidence says of a loss: when, by whom, where, and what else would explain it."""

from collections.abc import Mapping, Sequence
from typing import Any

from analyzers import model
from analyzers.ladder import Step
from analyzers.made import made
from analyzers.missing import Missing
from analyzers.model import Fact
from analyzers.replay import Replayed
from analyzers.residency import Loss
from analyzers.settings import Settings
from analyzers.wording import counted, milliseconds, number
from otel_cache.semconv import names


def facts_of(one: Replayed, replayed: Sequence[Replayed]) -> list[Fact]:
    """Return the facts behind the losses of a lookup, from the top of the ladder down."""
    explained = one.explained
    if explained is None:
        return []
    # Only steps that say more than their class have data, but for those to another key.
    found = [
        fact
        for step in explained.steps
        if (step.data or step.cls == model.KEY_DIFFERENCE) and (fact := _fact(one, step, replayed))
    ]
    if explained.predicted < explained.needed:
        found.extend(_others(one, explained.steps))
    return found


def _fact(one: Replayed, step: Step, replayed: Sequence[Replayed]) -> Fact | None:
    time = one.row.start
    tokens = step.upper - step.lower
    if step.cls == model.KEY_DIFFERENCE:
        return _key_difference(one, replayed, tokens)
    if step.cls == model.IN_FLIGHT and step.data.get("producer"):
        early = milliseconds(step.data["registered_at"] - time)
        return Fact(step.cls, tokens, made(_says_early), {"early_ms": early, "producer": step.data["producer"]})
    if step.cls == model.HELD_ELSEWHERE:
        return _held_elsewhere(step, tokens)
    if step.data.get("loss") is not None:
        gone = [entry.group.index for entry in _gone(one)]
        groups = sorted({*step.data["groups"], *gone}) if step.data.get("groups") else sorted(set(gone))
        data = _loss(step.data["loss"], step.data["replica"], groups, time)
        if "intact" in step.data:
            data["boundary"] = step.data["intact"]
        return Fact(step.cls, tokens, made(_says_lost), data)
    return None


def _says_early(fact: Fact) -> str:
    early, producer = fact.data["early_ms"], fact.data["producer"]
    return f"the lookup came {early} ms before {producer} had registered {counted(fact.tokens)} more"


def _held_elsewhere(step: Step, tokens: int) -> Fact:
    data: dict[str, Any] = {"replicas": step.data["replicas"]}
    if "reach" in step.data:
        data |= {
            "hit_tokens": step.data["hit"], "reach_tokens": step.data["reach"], "lacking": step.data.get("lacking")
        }  # fmt: skip
    return Fact(step.cls, tokens, made(_says_held), data)


def _says_held(fact: Fact) -> str:
    says = f"{', '.join(fact.data['replicas'])} held them"
    if lacking := fact.data.get("lacking"):
        word = "group" if len(lacking) == 1 else "groups"
        says += (
            f", but {word} {', '.join(map(str, lacking))} had no state at {number(fact.data['reach_tokens'])} there, "
            f"so the hit would have been {number(fact.data['hit_tokens'])}"
        )
    return says


def _gone(one: Replayed) -> Sequence[Missing]:
    explained = one.explained
    assert explained
    return [entry for entry in (explained.gone or explained.missing) if entry.loss]


def _loss(loss: Loss, replica: str, groups: list[int], time: int) -> dict[str, Any]:
    data: dict[str, Any] = {"replica": replica, "before_ms": milliseconds(time - loss.time), "groups": groups}
    if loss.reason != "reset":
        data["evictor"] = loss.evictor or None
        data["evictor_group"] = loss.taker
        if loss.used:
            data["idle_ms"] = milliseconds(loss.time - loss.used)
    return data


def _says_lost(fact: Fact) -> str:
    data = fact.data
    if "evictor" not in data:
        return f"{data['replica']} lost its cache {data['before_ms']} ms before the lookup"
    taker = "" if data["evictor_group"] is None else f" to group {data['evictor_group']}"
    by = f"{' of' if taker else ' for'} {data['evictor']}" if data["evictor"] else ""
    says = f"{data['replica']} gave the blocks away{taker}{by} {data['before_ms']} ms before the lookup"
    if "idle_ms" in data:
        says += f", unused for {data['idle_ms']} ms"
    if fact.cls != model.CHECKPOINT_EVICTED:  # there the cause names them
        says += f"; groups: {', '.join(map(str, data['groups']))}"
    return says


def _key_difference(one: Replayed, replayed: Sequence[Replayed], tokens: int) -> Fact | None:
    if one.other_key is None:
        return None
    row, other = one.row, replayed[one.other_key].row
    differing = [
        what
        for what, mine, theirs in (("lora", row.lora, other.lora), ("salt", row.salt, other.salt))
        if mine != theirs
    ]
    if row.items != other.items:
        differing.append("multimodal")
    data: dict[str, Any] = {"differs": differing, "request": other.request_id}
    named = {"lora": "LoRA adapter", "salt": "cache salt", "multimodal": "multimodal item"}
    what = " and ".join(named[each] for each in differing) or "key"
    says = f"{other.request_id} had the same tokens under another {what}"
    if "multimodal" in differing:
        at = _first_difference(row.items, other.items)
        if at is not None:
            data["item_offset"] = at
            says += f": the first item that differs is at {number(at)}"
    return Fact(model.KEY_DIFFERENCE, tokens, says, data)


def _first_difference(one: str, other: str) -> int | None:
    """Return the offset (tokens) of the first item that only one of two prompts has."""
    differing = set(one.split(",")) ^ set(other.split(","))
    return min((int(item.partition(":")[0]) for item in differing if item), default=None)


def _others(one: Replayed, steps: Sequence[Step]) -> list[Fact]:
    """Return the other causes that would explain the loss of a state, had the first not."""
    explained = one.explained
    assert explained
    lost = explained.needed - explained.predicted
    taken = steps[-1].cls if steps else ""
    found = []
    at = number(explained.needed)
    for cls, states in ((model.SHIFTED_BOUNDARY, "masked"), (model.CHECKPOINT_EVICTED, "evicted")):
        entries = [entry for entry in explained.missing if entry.state == states]
        if entries and cls != taken:
            groups = [entry.group.index for entry in entries]
            word = "had it refused by the retention mask" if states == "masked" else "lost it to an eviction"
            says = f"groups {', '.join(map(str, groups))} {word} at {at}"
            found.append(Fact(cls, lost, says, {"groups": groups, "also": True}))
    never = [entry for entry in explained.missing if entry.state == "not_materialized" and entry.refusal]
    if never and taken == model.NOT_MATERIALIZED:
        found.extend(_refused_too(never, one.residency.wanted, explained.needed, lost, one.settings))
    elif never:
        groups = [entry.group.index for entry in never]
        says = f"groups {', '.join(map(str, groups))} never had a state at {at}: no chunk ended there"
        found.append(Fact(model.NOT_MATERIALIZED, lost, says, {"groups": groups, "also": True}))
    if explained.predicted < explained.intact <= explained.needed and taken != model.CHECKPOINT_EVICTED:
        says = f"every group had had its state at {number(explained.intact)}, and it was evicted"
        tokens = explained.intact - explained.predicted
        found.append(Fact(model.CHECKPOINT_EVICTED, tokens, says, {"boundary": explained.intact, "also": True}))
    return found


def _refused_too(
    never: Sequence[Missing], wanted: Mapping[int, Sequence[int]], needed: int, lost: int, settings: Settings
) -> list[Fact]:
    """Return that the mask would have refused the state, had a chunk ended at the boundary."""
    groups = [entry.group.index for entry in never if needed not in wanted.get(entry.group.index, ())]
    if settings.retention == names.RETENTION_DENSE or not groups:
        return []
    positions = sorted({position for group in groups for position in wanted.get(group, ())})
    said = ", ".join(number(position) for position in positions[-4:]) or "none"
    says = f"the retention mask would have refused it at {number(needed)} as well: it wanted {said}"
    return [Fact(model.SHIFTED_BOUNDARY, lost, says, {"groups": groups, "wanted": positions, "also": True})]
