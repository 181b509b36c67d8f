"""A sweep: the same requests under many settings on vLLM's own scheduler, and what each setting gives and costs."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import msgspec

from analyzers.experiments.choices import intervals
from analyzers.experiments.reuse import Repeat, repeats, repeats_by_replica, warm_pair
from analyzers.vllm_lab.checks import SPARSE, check_scenario
from analyzers.vllm_lab.results import LabResult
from analyzers.vllm_lab.routing import Routing, routed
from analyzers.vllm_lab.run import LabWorker, checked_folder
from analyzers.vllm_lab.scenario import Scenario
from otel_cache.errors import LabError, ScenarioError

Value = int | str
LOOK_SECONDS = 0.2
"""Between two looks: whether the sweep was interrupted, and then whether a process of it was just starting."""


@dataclass(frozen=True)
class Axes:
    """What is set, and varied where it has several values; an axis without values stays as the scenario has it."""

    retention_interval: Sequence[Value] = ()
    max_num_batched_tokens: Sequence[int] = ()
    match_unit: Sequence[int] = ()
    num_gpu_blocks: Sequence[int] = ()
    vllm: Sequence[Path | None] = ()
    replicas: Sequence[int] = ()
    routing: Sequence[Routing] = ()


@dataclass(frozen=True)
class Setting:
    """One setting: what is set in it, by name, and the scenario and the vLLM that it is run with.

    `shared` says what each sending repeats: that is the same in all settings of a sweep. `refused` says why it is not
    to be run: vLLM would refuse it.
    """

    varied: Mapping[str, Value]
    scenario: Scenario
    vllm: Path | None
    shared: Mapping[str, Repeat]
    refused: str = ""


@dataclass(frozen=True)
class Measured:
    """What a setting gave. Tokens, and blocks counted by their keys.

    Attributes:
        varied: what is set in it; `version` is vLLM's, "" where none of it has run.
        first: hit tokens and shared tokens of the sendings that repeat what one sending had before, on any replica.
        later: the same of those that repeat what several had.
        own: the same of those that repeat what one sending had before on their own replica.
        cached: by group, blocks cached when all groups together held most, over all replicas.
        evicted: by group, blocks that left the cache.
        prefill: tokens that had to be computed.
        warm: conversations that stayed warm at once, at the most; `longest` the two longest that did together.
        refused: why vLLM does not run it; "": it did.
        pareto: no other setting is as good in everything and better in something.

    """

    varied: Mapping[str, Value]
    version: str = ""
    first: tuple[int, int] = (0, 0)
    later: tuple[int, int] = (0, 0)
    cached: Mapping[int, int] = field(default_factory=dict)
    evicted: Mapping[int, int] = field(default_factory=dict)
    prefill: int = 0
    warm: int = 0
    longest: Sequence[tuple[str, int]] = ()
    refused: str = ""
    pareto: bool = False
    own: tuple[int, int] = (0, 0)

    @property
    def aims(self) -> tuple[int, int, int, int]:
        """What is to be as large as possible: reuse, and less of what it costs."""
        return self.first[0], self.later[0], -sum(self.cached.values()), -sum(self.evicted.values())


def settings_of(base: Scenario, axes: Axes, source: str) -> list[Setting]:
    """Return a setting for each combination of values.

    Where no axis has several, and the retention interval is not set, that is varied: `intervals`.

    Raises:
        ScenarioError: there is nothing to vary.
        LabError: a folder holds no vLLM.

    """
    values = {name: list(getattr(axes, name)) for name in Axes.__dataclass_fields__ if getattr(axes, name)}
    shared = repeats(base)
    if not axes.retention_interval and all(len(each) == 1 for each in values.values()):
        if any(group.kind in SPARSE for group in base.engine.groups):
            values["retention_interval"] = intervals(base.engine, _reusable(base, shared))
        elif not values:
            raise ScenarioError(
                f"{source}: there is nothing to vary: a retention interval has no effect without a mamba or "
                "sliding_window group; give a list, such as --num-gpu-blocks 100,400"
            )
    found = []
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        vllm = checked_folder(chosen.get("vllm"))
        scenario = _scenario(base, chosen)
        varied = {name: value if isinstance(value, int) else str(value) for name, value in chosen.items()}
        refused = ""
        try:
            check_scenario(scenario, source)
        except ScenarioError as error:
            refused = str(error).removeprefix(f"{source}: ")
        found.append(Setting(varied, scenario, vllm, shared, refused))
    return found


def _reusable(base: Scenario, shared: Mapping[str, Repeat]) -> list[int]:
    """Return what each sending shares with earlier ones (tokens); of a work that repeats nothing, what a resend would.

    The last token of a prompt is always computed.
    """
    found = [each.shared for each in shared.values() if each.shared]
    return found or [request.prompt_tokens - 1 for request in base.requests]


def _scenario(base: Scenario, chosen: Mapping[str, Value]) -> Scenario:
    names = {
        "retention_interval": "prefix_cache_retention_interval",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "match_unit": "prefix_match_unit",
        "num_gpu_blocks": "num_gpu_blocks",
    }
    changes = {names[name]: value for name, value in chosen.items() if name in names}
    engine = msgspec.structs.replace(base.engine, **changes)
    requests, replicas = base.requests, base.replicas
    if "replicas" in chosen or "routing" in chosen:
        replicas = int(chosen.get("replicas", base.replicas))
        free = [msgspec.structs.replace(request, replica=None) for request in base.requests]
        routing: Routing = chosen.get("routing", "round_robin")  # type: ignore[assignment]
        requests = tuple(routed(free, replicas, routing))
    # The keys in the pool's map are what is counted of blocks.
    return Scenario(engine, requests, replicas, observe_cache=True)


def sweep(
    settings: Sequence[Setting], processes: int, done: Callable[[Setting], None] = lambda setting: None
) -> list[Measured]:
    """Run all settings, at most so many at once, each in a process of its own; `done` is told of each.

    Raises:
        LabError: vLLM runs none of them.

    """
    workers = _Workers()
    with ThreadPoolExecutor(max(1, min(processes, len(settings)))) as pool:
        running = [pool.submit(workers.measure, setting, done) for setting in settings]
        try:
            # A wait without an end is not interrupted: polars has the system go on with it after a signal.
            while not all(each.done() for each in running):
                wait(running, timeout=LOOK_SECONDS)
        except BaseException:
            # An interrupted sweep is over at once: no setting is begun any more, and those at work have no answer.
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(each.done() for each in running):
                workers.kill()
                time.sleep(LOOK_SECONDS)
            raise
        finally:
            workers.close()
    measured = [each.result() for each in running]
    if all(row.refused for row in measured):
        raise LabError(measured[0].refused)
    return marked(_with_versions(settings, measured))


def _with_versions(settings: Sequence[Setting], rows: Sequence[Measured]) -> Iterator[Measured]:
    """Yield the rows; one that was refused has the version that other rows on this vLLM have."""
    versions = {setting.vllm: row.version for setting, row in zip(settings, rows, strict=True) if row.version}
    for setting, row in zip(settings, rows, strict=True):
        yield replace(row, version=versions.get(setting.vllm, ""))


class _Workers:
    """A lab per thread and vLLM, without instrumentation: nothing but vLLM's own results is needed."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[LabWorker] = []

    def measure(self, setting: Setting, done: Callable[[Setting], None]) -> Measured:
        if setting.refused:
            done(setting)
            return Measured(setting.varied, refused=setting.refused)
        known: dict[Path | None, LabWorker] = self._own.__dict__.setdefault("workers", {})
        if setting.vllm not in known:
            known[setting.vllm] = LabWorker(setting.vllm, instrument=False)
            self._all.append(known[setting.vllm])
        worker = known[setting.vllm]
        try:
            found = measured_of(setting, worker.run(setting.scenario))
        except (LabError, ScenarioError) as error:
            found = Measured(setting.varied, worker.vllm_version, refused=str(error))
        done(setting)
        return found

    def kill(self) -> None:
        for worker in list(self._all):
            worker.kill()

    def close(self) -> None:
        for worker in self._all:
            worker.close()


def measured_of(setting: Setting, result: LabResult) -> Measured:
    """Return what a run says of its setting."""
    first = later = own = (0, 0)
    sent = []
    by_replica = repeats_by_replica(setting.scenario) if setting.scenario.replicas > 1 else setting.shared
    for request in result.requests:
        repeat = setting.shared[request.request_id]
        pair = (request.hit_tokens, repeat.shared)
        if repeat.shared and repeat.first:
            first = _add(first, pair)
        elif repeat.shared:
            later = _add(later, pair)
        here = by_replica[request.request_id]
        if here.shared and here.first:
            own = _add(own, (request.hit_tokens, here.shared))
        sent.append((request.request_id, repeat.conversation, request.prompt_tokens, request.hit_tokens))
    warm, longest = warm_pair(sent)
    return Measured(
        varied=setting.varied,
        version=result.vllm_version,
        first=first,
        later=later,
        own=own,
        cached=_sum(replica.peak for replica in result.replicas),
        evicted=_sum(replica.removed for replica in result.replicas),
        prefill=sum(request.prompt_tokens - request.hit_tokens for request in result.requests),
        warm=warm,
        longest=longest,
    )


def _add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return one[0] + two[0], one[1] + two[1]


def _sum(counts: Iterator[Mapping[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in counts:
        for group, blocks in each.items():
            found[group] = found.get(group, 0) + blocks
    return dict(sorted(found.items()))


def marked(measured: Iterable[Measured]) -> list[Measured]:
    """Return the rows, the Pareto choices marked: those that no other row beats."""
    rows = list(measured)
    return [replace(row, pareto=not row.refused and not any(_beats(other, row) for other in rows)) for row in rows]


def _beats(one: Measured, other: Measured) -> bool:
    if one.refused or one.aims == other.aims:
        return False
    return all(first >= second for first, second in zip(one.aims, other.aims, strict=True))
