"""Requests that were at work at a moment, and how far they got afterwards."""

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from analyzers.events import STORE, Timeline, in_order, rows_of
from analyzers.ladder import Coming
from analyzers.prompts import Chain, Prompt, common_prefix
from analyzers.settings import Settings
from otel_cache.semconv.positions import parse_positions

Name = tuple[int, str]
CLEAN_FROM = 256
"""So many requests at work are looked through for those that are not any more."""
_REGISTERED = ("stored", "masked", "not_materialized")
"""Columns with positions that were computed; only the first are in the cache."""


class Producers:
    """Knows in advance what each request registers, and when; `begin` says which are at work."""

    def __init__(self, line: Timeline, settings: Sequence[Settings]) -> None:
        """Take the stores of a timeline."""
        self._settings = settings
        self._progress: dict[Name, list[tuple[int, Sequence[range]]]] = {}
        self._active: dict[Name, None] = {}
        self._clean_at = CLEAN_FROM
        told = pl.DataFrame(
            {"life": range(len(settings)), "asked": [_registering(own) for own in settings]},
            schema={"life": pl.Int32, "asked": pl.Int32},
        )
        ordered = line.order.filter(pl.col("kind") == STORE)
        frame = line.stores.select("life", "request_id", "groups", *_REGISTERED)
        start = 0
        for part in in_order(frame, ordered["index"]):
            self._take(part.with_columns(time=ordered["time"][start : start + part.height]), told)
            start += part.height

    def _take(self, stores: pl.DataFrame, told: pl.DataFrame) -> None:
        rows = stores.join(told, on="life", how="left", maintain_order="left")
        rows = rows.filter(pl.col("asked").is_null() | pl.col("groups").list.contains(pl.col("asked")))
        columns = rows.select("time", "life", "request_id", "asked", *_REGISTERED)
        for time, life, request, asked, *texts in rows_of(columns):
            runs: Sequence[range]
            if asked is None:
                runs = [run for text in texts if text for run in parse_positions(text)]
            else:
                runs = parse_positions(texts[0]) if texts[0] else ()
            if runs:
                self._progress.setdefault((life, request), []).append((time, runs))

    def begin(self, name: Name, time: int) -> None:
        """Note that the request `name` has been looked up at `time` (ns)."""
        progress = self._progress.get(name)
        if progress and progress[-1][0] > time:
            self._active[name] = None
            if len(self._active) >= self._clean_at:
                self._clean(time)
                self._clean_at = 2 * len(self._active) + CLEAN_FROM

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
        self._clean(time)
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

    def _clean(self, time: int) -> None:
        """Forget the requests that registered nothing after `time` (ns)."""
        for producer in [one for one in self._active if self._progress[one][-1][0] <= time]:
            del self._active[producer], self._progress[producer]


def _registering(settings: Settings) -> int | None:
    """Return the dense group whose stores register positions; None: there is none, and what is computed counts."""
    return settings.dense_groups[0].index if settings.dense_groups else None


def _last_within(run: range, limit: int) -> int:
    """Return the last position of an ascending `run` that is at most `limit`; 0: there is none."""
    count = (min(limit, run[-1]) - run.start) // run.step
    return run[count] if count >= 0 else 0
