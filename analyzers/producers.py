"""Requests that were at work at a moment, and how far they got afterwards."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analyzers.events import Event
from analyzers.ladder import Coming
from analyzers.prompts import Chain, Prompt, common_prefix
from analyzers.settings import Settings
from otel_cache.semconv.positions import parse_positions

Name = tuple[int, str]


class Producers:
    """Knows in advance what each request registers, and when; `begin` says which are at work."""

    def __init__(self, events: Sequence[Event], settings: Sequence[Settings]) -> None:
        self._settings = settings
        self._progress: dict[Name, list[tuple[int, list[range]]]] = {}
        self._active: dict[Name, None] = {}
        for event in events:
            if event.kind == "store":
                runs = _registered(settings[event.life], event.row)
                if runs:
                    self._progress.setdefault((event.life, event.row["request_id"]), []).append((event.time, runs))

    def begin(self, name: Name, time: int) -> None:
        """Note that the request `name` has been looked up at `time` (ns)."""
        progress = self._progress.get(name)
        if progress and progress[-1][0] > time:
            self._active[name] = None

    def coming(
        self,
        chain: Chain,
        lives: Collection[int],
        after: int,
        time: int,
        name: Name,
        prompts: Mapping[Name, Prompt],
    ) -> Coming:
        """Return how far producers that were at work at `time` registered `chain` afterwards, in tokens.

        Args:
            chain: the prompt of the request `name`.
            lives: those whose chains compare with it.
            after: what had been registered before, tokens.
            time: of the lookup, ns.
            name: the request itself, which is no producer of its own.
            prompts: of all requests so far.

        """
        for producer in [one for one in self._active if self._progress[one][-1][0] <= time]:
            del self._active[producer]
        best = Coming(after)
        for producer in self._active:
            if producer == name or producer[0] not in lives:
                continue
            shared = common_prefix(chain, prompts[producer].chain) * self._settings[producer[0]].hash_block
            for when, runs in self._progress[producer]:
                reached = max((_last_within(run, shared) for run in runs), default=0)
                if reached > best.reached:
                    best = Coming(reached, when, producer[1])
        return best


def _registered(settings: Settings, row: Mapping[str, Any]) -> list[range]:
    """Return the positions that a store row registers in a dense group, or computes where there is none."""
    dense = settings.dense_groups
    if dense and row["group"] != dense[0].index:
        return []
    columns = ("stored",) if dense else ("stored", "masked", "not_materialized")
    return [run for column in columns for run in parse_positions(row[column])]


def _last_within(run: range, limit: int) -> int:
    """Return the last position of an ascending `run` that is at most `limit`; 0: there is none."""
    count = (min(limit, run[-1]) - run.start) // run.step
    return run[count] if count >= 0 else 0
