"""Fetching as a whole: which services, window after window, into a capture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from analyzers.fetch.capture import CaptureFile
from analyzers.fetch.windows import Page, Window, clock, walk
from otel_cache.errors import FetchError


class Backend(Protocol):
    """What a back end must be able to do."""

    name: str
    finest: int
    notes: list[str]

    def services(self, wanted: Sequence[str]) -> list[str]:
        """Return the services to ask for."""

    def search(self, service: str, window: Window, limit: int) -> Page:
        """Return the traces of a service with a span in a window, so many at most."""

    def nothing(self, service: str, window: Window) -> str:
        """Return why nothing of a service may have been found."""


@dataclass(frozen=True)
class Fetched:
    """What came of it.

    Attributes:
        spans: spans of otel_cache in the capture, each once; `foreign`: those of other programs in the same traces.
        traces: traces that they are of.
        services: services that were asked for.
        notes: what is missing or may be, a sentence each.

    """

    spans: int
    foreign: int
    traces: int
    services: list[str]
    notes: list[str]


Progress = Callable[[int, int, float], None]
"""Takes the spans and traces so far, and the share of the time that is done, 0 to 1."""


def fetch(
    backend: Backend, wanted: Sequence[str], window: Window, limit: int, out: str, progress: Progress = lambda *_: None
) -> Fetched:
    """Fetch what `backend` has of the services `wanted`, all of ours where that is empty, from `window` into `out`.

    `limit` traces are asked for at once.

    Raises:
        UsageError: `out` cannot be written.
        FetchError: the back end cannot be asked, or has nothing of ours there; `out` is as it was.

    """
    notes: list[str] = []
    with CaptureFile(out) as file:
        services = backend.services(wanted)
        for index, service in enumerate(services):
            for part, page in walk(window, backend.finest, limit, partial(backend.search, service)):
                for trace in page.traces:
                    file.add(trace)
                    progress(file.spans, file.traces, (index + _share(window, part.begin)) / len(services))
                if page.full:
                    notes.append(_full(backend, service, part, page.asked))
                progress(file.spans, file.traces, (index + _share(window, part.end)) / len(services))
        if not file.spans:
            raise FetchError(_nothing(backend, services, window, file))
        notes += dict.fromkeys(backend.notes)
        notes += [
            f"{replica}: by their numbers {count} spans of the evidence are not there: lost on the way, sampled, or "
            "cut off by the back end; a cause that needs them is unknown"
            for replica, count in file.holes().items()
        ]
        file.finish()
        return Fetched(file.spans, file.foreign, file.traces, services, notes)


def _share(window: Window, time: int) -> float:
    return min(max((time - window.begin) / (window.end - window.begin), 0.0), 1.0)


def _full(backend: Backend, service: str, part: Window, asked: int) -> str:
    of = f" of {service}" if service else ""
    return f"truncated: {backend.name} gives no more than {asked} traces{of} at {clock(part.begin)}, and has more"


def _nothing(backend: Backend, services: Sequence[str], window: Window, file: CaptureFile) -> str:
    if file.foreign:
        return (
            f"{backend.name} has {file.traces} traces from {window} of {', '.join(services)}, and no span of "
            "otel_cache in them; was the plugin on, and is this the right --service?"
        )
    return "; ".join(backend.nothing(service, window) for service in services)
