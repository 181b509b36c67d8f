"""The attempts to admit a request: lookups in a row with one outcome are one span.

`schedule` may look a request up twice in one call: where a KV connector continues at another hit, the second lookup
takes the place of the first. So what was open before a call stays until the call's outcome is known.
"""

import msgspec

from otel_cache.records import Lookup, RepeatedLookup
from otel_cache.sidecar.causes import Cause
from otel_cache.sidecar.verdict import Verdict, same_outcome


class OpenLookup(msgspec.Struct, gc=False):
    """Lookups in a row with one outcome, none of which has been closed yet; times in ns since the epoch.

    `last` is the latest that was sent whole, `start` the start of the first and `called` that of the first in the
    latest call of `schedule`, which has the number `step` (0: not known). `end` and `sequence` are the latest's.
    `before` is what was open before that call; `joined` says that it is the same row with one attempt less.
    """

    last: Lookup
    verdict: Verdict
    causes: list[tuple[bool, Cause]]
    attempts: int
    start: int
    called: int
    end: int
    sequence: int
    step: int
    before: "OpenLookup | None" = None
    joined: bool = False

    @property
    def open_attempts(self) -> int:
        """Attempts that no span tells of yet."""
        return self.attempts + (0 if self.joined or self.before is None else self.before.attempts)

    def settle(self) -> "OpenLookup | None":
        """Let go of what was open before: it can be returned to no more. Return it where it is to be closed."""
        before, self.before = self.before, None
        return None if self.joined else before


def look_up(
    known: OpenLookup | None, record: Lookup, verdict: Verdict, causes: list[tuple[bool, Cause]]
) -> tuple[OpenLookup, list[OpenLookup]]:
    """Return what is open once `record` is taken in, and the lookups that it closes."""
    closed: list[OpenLookup] = []
    base, called = known, record.start
    if known is not None:
        if record.step and record.step == known.step:
            base, called = known.before, known.called
        elif (settled := known.settle()) is not None:
            closed.append(settled)
    joined = base is not None and same_outcome(base.last, record)
    if base is not None and not joined and not record.step:
        closed.append(base)
        base = None
    attempts, start = (base.attempts + 1, base.start) if base is not None and joined else (1, called)
    opened = OpenLookup(
        record, verdict, causes, attempts, start, called, record.end, record.sequence, record.step, base, joined
    )
    return opened, closed


def repeat(known: OpenLookup, record: RepeatedLookup) -> tuple[OpenLookup, list[OpenLookup]]:
    """Return what is open once `known` was made again, and the lookups that this closes."""
    if record.step and record.step == known.step:
        known.end, known.sequence = max(known.end, record.end), record.sequence
        return known, []
    settled = known.settle()
    opened = OpenLookup(
        known.last, known.verdict, known.causes, known.attempts + 1, known.start, record.start, record.end,
        record.sequence, record.step, known, True,
    )  # fmt: skip
    return opened, [] if settled is None else [settled]
