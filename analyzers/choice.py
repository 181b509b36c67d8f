"""Which lookups of a capture a report is about. All evidence is replayed; this chooses among what came out."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from analyzers.model import LookupResult
from otel_cache.errors import UsageError

_UNITS = {"ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9}
_OFFSET = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True)
class Choice:
    """Lookups from `since` to `until` (ns since the epoch) on `replica`, of the family of the request `family`."""

    since: int | None = None
    until: int | None = None
    replica: str | None = None
    family: str | None = None

    def of(self, results: Sequence[LookupResult]) -> list[LookupResult]:
        """Return the results that are chosen, in their order."""
        families = {result.family for result in results if self.family in (result.family, result.request_id)}
        return [
            result
            for result in results
            if (self.since is None or result.time >= self.since)
            and (self.until is None or result.time <= self.until)
            and (self.replica is None or result.replica == self.replica)
            and (self.family is None or result.family in families)
        ]


def moment(text: str, begin: int, option: str) -> int:
    """Return the time (ns since the epoch) that `text` means: ISO 8601 (UTC unless it says), or 90s after `begin`.

    Raises:
        UsageError: it is neither; names the `option` that it came from.

    """
    after = offset(text)
    if after is not None:
        return begin + after
    try:
        time = datetime.fromisoformat(text)
        return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text}: neither a time such as 2026-05-01T12:00:00 (UTC) nor one after the capture's first "
            "lookup such as 90s, 10m or 2h"
        ) from None


def offset(text: str) -> int | None:
    """Return the nanoseconds that 500ms, 90s, 10m, 2h or 7d are; None where `text` is no such duration."""
    found = _OFFSET.fullmatch(text)
    duration = float(found[1]) * _UNITS[found[2]] if found else math.inf
    return round(duration) if math.isfinite(duration) else None
