"""Our spans of the probe's requests: waits for them, and joins them to what was sent."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analyzers.analysis import analyze
from analyzers.choice import Choice
from analyzers.model import Analysis, Capture
from analyzers.probe.model import Observation
from analyzers.readers import open_capture
from analyzers.readers.sources import PART_SUFFIX, looks_like_capture
from analyzers.settings import Settings, read_settings
from otel_cache.errors import CaptureError, UsageError

WAIT_SECONDS = 15.0
"""How long spans may be on their way: the sidecar sends batches each second."""
PAUSE_SECONDS = 0.25
PARQUET_SUFFIX = ".parquet"


@dataclass(frozen=True)
class Joined:
    """What our spans say of the probe's requests.

    Attributes:
        observations: those of the probe, with their lookups where there are any.
        settings: resource attributes of the replica that took them; empty where none is known.
        others: replicas besides it that took some.
        analysis: of what happened from the first of them to the last; None without spans.

    """

    observations: list[Observation]
    settings: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[str] = ()
    analysis: Analysis | None = None


class Spans:
    """The spans that the probe's own receiver writes to the file `path`."""

    def __init__(self, path: Path, label: str) -> None:
        """Read nothing yet: the file may still have to come. `label` is what the user calls it."""
        self.path = path
        self.label = label

    def wait(self, names: Sequence[tuple[str, str]]) -> Capture | None:
        """Return the capture once it holds a request for each of these (trace id, API's id), or else what it holds.

        Returns:
            None where the file holds no span of otel_cache, or is not there.

        """
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            begin = time.monotonic()
            capture = self._read()
            if capture is not None and len(_requests(capture, names)) == len(names):
                return capture
            if time.monotonic() >= deadline:
                return capture
            # A long file is not read without a break.
            time.sleep(max(PAUSE_SECONDS, time.monotonic() - begin))

    def check(self) -> None:
        """Let the probe begin: spans may come."""

    def check_begun(self) -> None:
        """Let the probe go on after its first request."""

    def settings(self, trace_id: str, request_id: str) -> Settings | None:
        """Return the settings of the replica that took a request; None where no span of it comes."""
        capture = self.wait([(trace_id, request_id)])
        found = _requests(capture, [(trace_id, request_id)]) if capture else {}
        if capture is None or not found:
            return None
        life, _ = next(iter(found.values()))
        return read_settings(capture.lives[life].attributes, capture.lives[life].replica)

    def join(self, observations: Sequence[Observation]) -> Joined:
        """Return the observations with their lookups, explained."""
        names = [(one.trace_id, one.answer.request_id) for one in observations]
        capture = self.wait(names)
        if capture is None:
            return Joined(list(observations))
        found = _requests(capture, names)
        if not found:
            return Joined(list(observations))
        analysis = analyze(capture, _when(capture, set(found.values())))
        lookups = {(each.life, each.request_id): each for each in analysis.lookups}
        joined = [
            replace(one, lookup=lookups.get(found[name])) if name in found else one
            for one, name in zip(observations, names, strict=True)
        ]
        used = [life for life, _ in found.values()]
        main = max(set(used), key=used.count)
        others = sorted({capture.lives[life].replica for life in used} - {capture.lives[main].replica})
        return Joined(joined, capture.lives[main].attributes, others, analysis)

    def _read(self) -> Capture | None:
        try:
            return open_capture([self.path]) if self.path.exists() else None
        except CaptureError:
            # Nothing of ours is in it yet.
            return None


class NamedSpans(Spans):
    """The spans that a sidecar writes to a file that the user named: a wrong name is told before much is sent."""

    def check(self) -> None:
        """Let the probe begin where spans may come; the sidecar may still have to make the file, not its folder.

        Raises:
            UsageError: none can come there.

        """
        part = Path(f"{self.label}{PART_SUFFIX}")
        if self.path.suffix == PARQUET_SUFFIX and not self.path.is_dir():
            raise UsageError(
                f"--spans {self.label}: the sidecar makes a Parquet file when it ends; until then spans are in {part}: "
                "give that"
            )
        if self.path.is_dir():
            return
        if not self.path.exists():
            folder = self.path.absolute().parent
            if not folder.is_dir():
                raise UsageError(f"--spans {self.label}: there is no folder {folder}")
            return
        try:
            sound = not self.path.is_file() or not self.path.stat().st_size or looks_like_capture(self.path)
        except (OSError, CaptureError) as error:
            raise UsageError(f"--spans {self.label}: cannot be read ({error})") from error
        if not sound:
            raise UsageError(f"--spans {self.label}: holds no spans; give the file that the server's sidecar writes to")

    def check_begun(self) -> None:
        """Let the probe go on after its first request, by which the sidecar has made the file.

        Raises:
            UsageError: it is not there.

        """
        if not self.path.exists():
            raise UsageError(
                f"--spans {self.label}: no such file, and the probe's first request did not make it come; give the "
                "file that the server's sidecar writes to, or leave --spans out"
            )


def _when(capture: Capture, requests: Collection[tuple[int, str]]) -> Choice:
    """Return the choice of the lookups from the first of these requests to the last."""
    rows = [row for row in capture.requests.iter_rows(named=True) if (row["life"], row["request_id"]) in requests]
    return Choice(since=min(row["start"] for row in rows), until=max(row["end"] for row in rows))


def _requests(capture: Capture, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return the request (life, vLLM's id) of each (trace id, API's id) that the capture has one for.

    vLLM keeps the caller's trace only where its own tracing is on; the API's id is in the request's in any case.
    """
    by_trace: dict[str, tuple[int, str]] = {}
    by_id: dict[str, tuple[int, str]] = {}
    for row in capture.requests.iter_rows(named=True):
        key = (row["life"], row["request_id"])
        by_trace[row["trace_id"]] = key
        # The API numbers the prompts of a request: `cmpl-abc-0`.
        external = row["external_id"] or row["request_id"]
        by_id[external] = by_id[external.rpartition("-")[0]] = key
    found = {}
    for trace, request in names:
        key_found = by_trace.get(trace) or (by_id.get(request) if request else None)
        if key_found is not None:
            found[(trace, request)] = key_found
    return found
