"""What was fetched, as a file of OTLP JSON lines: whole, or not there at all."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from otel_cache.errors import UsageError
from otel_cache.package import SCOPE
from otel_cache.semconv import names

STDOUT = "-"
LINE_SPANS = 512
"""Spans in a line: readers take a line as a whole."""
PART = ".part"
_INSTANCE = "service.instance.id"

Json = dict[str, Any]


class CaptureFile:
    """Takes spans, each once, and puts the file in its place when all of them are there.

    Used in a `with` block: what ends it early leaves nothing behind, and what stood there before as it was.

    Attributes:
        spans: spans of otel_cache that were taken; `foreign`: those of other programs; `traces`: traces of both.

    """

    def __init__(self, path: str) -> None:
        """Begin a file beside `path`, or for stdout where that is `-`.

        Raises:
            UsageError: nothing can be written there, or the name asks for another format.

        """
        self.spans = self.foreign = 0
        self._path = None if path == STDOUT else Path(os.path.realpath(path))
        self._seen: set[bytes | str] = set()
        self._traces: set[str] = set()
        self._numbers: dict[tuple[str, str], list[int]] = {}
        if path.endswith(".parquet"):
            raise UsageError(f"--out {path}: what is fetched is written as OTLP JSON lines; give a name such as .jsonl")
        if self._path is not None and self._path.is_dir():
            raise UsageError(f"--out {path}: a folder; give the name of a file")
        beside = self._path if self._replaces() else None
        name, folder = (beside.name, beside.parent) if beside else ("fetch", None)
        try:
            handle, self._part = tempfile.mkstemp(PART, f".{name}.", folder)
        except OSError as error:
            raise UsageError(f"--out {path}: cannot be written ({error.strerror or error})") from error
        self._stream: IO[bytes] = os.fdopen(handle, "wb")

    def _replaces(self) -> bool:
        """Whether the file takes the place of another one; what is no plain file is written into."""
        return self._path is not None and (self._path.is_file() or not self._path.exists())

    @property
    def traces(self) -> int:
        """Traces of which a span was taken."""
        return len(self._traces)

    def add(self, otlp: Mapping[str, Any]) -> None:
        """Take the spans of `{"resourceSpans": [...]}` that are not there yet."""
        for resource in otlp["resourceSpans"]:
            life = _life(resource["resource"])
            for scope in resource["scopeSpans"]:
                new = list(self._new(scope["spans"]))
                self._count(scope["scope"].get("name"), new, life)
                for first in range(0, len(new), LINE_SPANS):
                    spans = {**scope, "spans": new[first : first + LINE_SPANS]}
                    line = {"resourceSpans": [{"resource": resource["resource"], "scopeSpans": [spans]}]}
                    self._stream.write(msgspec.json.encode(line) + b"\n")

    def _new(self, spans: list[Json]) -> Iterator[Json]:
        for span in spans:
            written = f"{span.get('traceId')}{span.get('spanId')}"
            try:
                identity: bytes | str = bytes.fromhex(written)
            except ValueError:
                identity = written
            if identity not in self._seen:
                self._seen.add(identity)
                yield span

    def _count(self, scope: object, spans: list[Json], life: tuple[str, str]) -> None:
        self._traces.update(str(span.get("traceId")) for span in spans)
        if scope != SCOPE:
            self.foreign += len(spans)
            return
        self.spans += len(spans)
        for span in spans:
            with contextlib.suppress(TypeError, ValueError):
                number = int(_attribute(span, names.EVIDENCE_NUMBER))
                self._numbers.setdefault(life, []).append(number)

    def holes(self) -> dict[str, int]:
        """Return how many numbered spans of the evidence are missing between the first and the last, by replica."""
        holes: Counter[str] = Counter()
        for (replica, _), numbers in sorted(self._numbers.items()):
            holes[replica] += max(numbers) - min(numbers) + 1 - len(set(numbers))
        return {replica: count for replica, count in holes.items() if count}

    def finish(self) -> None:
        """Put the file in its place."""
        self._stream.close()
        if self._path is not None and self._replaces():
            Path(self._part).replace(self._path)
            return
        with open(self._part, "rb") as whole:  # noqa: PTH123
            if self._path is None:
                shutil.copyfileobj(whole, sys.stdout.buffer)
            else:
                with self._path.open("wb") as into:
                    shutil.copyfileobj(whole, into)

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave nothing but the finished file."""
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            Path(self._part).unlink(missing_ok=True)


def _life(resource: object) -> tuple[str, str]:
    return str(_attribute(resource, names.REPLICA_ID)), str(_attribute(resource, _INSTANCE))


def _attribute(owner: object, key: str) -> Any:
    """Return the value of an attribute of a span or resource as it is written; None where it has none."""
    attributes = owner.get("attributes") if isinstance(owner, dict) else None
    for each in attributes if isinstance(attributes, list) else ():
        if isinstance(each, dict) and each.get("key") == key and isinstance(each.get("value"), dict):
            return next(iter(each["value"].values()), None)
    return None
