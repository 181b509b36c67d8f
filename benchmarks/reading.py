"""How fast a capture becomes typed columns, beside what others make of the same file. Prints a JSON object.

`python benchmarks/reading.py [--spans N]`. Each reader is a process of its own, which says how long it took after its
imports, how many spans it found, and how much memory it needed at the most, those of its children added. All may use
the same processors, two at the most.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from capture import capture

PROCESSORS = 2
BEGINNING = 8 << 20
TENTH = 10
DUCKDB = """
create table spans as
with resources as (
    select unnest(resourceSpans) r from read_json(?, format = 'newline_delimited', maximum_object_size = 268435456)
), scopes as (select unnest(r.scopeSpans) s from resources), spans as (select unnest(s.spans) p from scopes)
select p.traceId trace_id, p.spanId span_id, p.parentSpanId parent_span_id, p.name as "name",
    p.startTimeUnixNano::bigint as "start", p.endTimeUnixNano::bigint as "end",
    map_from_entries(p.attributes) attributes
from spans
"""
FIELDS = {
    "int": ("intValue", "bigint"), "string": ("stringValue", "varchar"), "boolean": ("boolValue", "boolean"),
    "double": ("doubleValue", "double"),
}  # fmt: skip
"""Where OTLP has a value of each type, and what duckdb calls the type."""


def ours(path: str) -> Callable[[], int]:
    """Read with otel-cache, batch by batch."""
    from analyzers.readers.batches import read_batches
    from analyzers.readers.sources import Source

    source = Source(path, Path(path))
    return lambda: sum(frame.height for batch, _ in read_batches(source) for frame in batch.frames.values())


def whole(path: str) -> Callable[[], int]:
    """Read with otel-cache, and make the capture that is analyzed."""
    from analyzers.readers import open_capture

    return lambda: open_capture(path).spans


def analysis(path: str) -> dict[str, float]:
    """Read and analyze as `otel-cache analyze` does; how long either took."""
    from analyzers.memory import give_back_early

    give_back_early()
    from analyzers.analysis import analyze
    from analyzers.readers import open_capture

    start = time.perf_counter()
    given = [open_capture(path)]
    spans = given[0].spans
    read = time.perf_counter()
    # As the command does, which holds on to no capture either.
    lookups = len(analyze(given.pop()).lookups)
    end = time.perf_counter()
    return {"spans": spans, "lookups": lookups, "read_seconds": read - start, "analyze_seconds": end - read}


def tracelift(path: str) -> Callable[[], int]:
    """Read with tracelift: a fixed set of attributes."""
    import tracelift

    return lambda: int(tracelift.load(path).df.height)


def duckdb(path: str) -> Callable[[], int]:
    """Read with duckdb: a table for each name of spans, with a typed column for each attribute that they have.

    Of several ways it is the fastest that we found: the form of the JSON left to duckdb, a map of each span's
    attributes, columns out of that. Which attributes there are it is told.
    """
    import duckdb

    columns = _columns(path)

    def read() -> int:
        connection = duckdb.connect()
        connection.execute(f"set threads = {PROCESSORS}")
        connection.execute("set preserve_insertion_order = false")
        connection.execute(DUCKDB, [path])
        count = 0
        for name, attributes in columns.items():
            every = ", ".join(["trace_id, span_id, parent_span_id", '"start", "end"', *map(_column, attributes)])
            connection.execute(f"create table \"{name}\" as select {every} from spans where name = '{name}'")
            count += int(connection.execute(f'select count(*) from "{name}"').fetchall()[0][0])
        return count

    return read


def _columns(path: str) -> dict[str, list[str]]:
    """Return the attributes that the spans of a capture have, by the name of the spans."""
    from analyzers.readers.batches import read_batches
    from analyzers.readers.columns import DTYPES
    from analyzers.readers.sources import Source

    found: dict[str, dict[str, None]] = {}
    for batch, _ in read_batches(Source(path, Path(path))):
        for name, frame in batch.frames.items():
            found.setdefault(name, {}).update(dict.fromkeys(column for column in frame.columns if column in DTYPES))
    return {name: list(columns) for name, columns in found.items()}


def _column(attribute: str) -> str:
    from otel_cache.semconv.types import SPAN_TYPES

    field, kind = FIELDS[SPAN_TYPES[attribute].removesuffix("[]")]
    value = f"attributes['{attribute}']"
    if SPAN_TYPES[attribute].endswith("[]"):
        return f'list_transform({value}.arrayValue."values", lambda each: each.{field})::{kind}[] as "{attribute}"'
    return f'{value}.{field}::{kind} as "{attribute}"'


READERS = {"ours": ours, "whole": whole, "tracelift": tracelift, "duckdb": duckdb}
RUNS = (
    ("json", "ours"), ("json", "tracelift"), ("json", "duckdb"), ("protobuf", "ours"), ("parquet", "ours"),
    ("json", "analysis"), ("parquet", "whole"), ("shared", "analysis"), ("tenth", "analysis"), ("tenth", "ours"),
)  # fmt: skip


def measure(reader: str, path: str) -> dict[str, float]:
    """Run one reader in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    if reader == "analysis":
        return {**analysis(path), "peak_mb": _peak()}
    read = READERS[reader](path)
    start = time.perf_counter()
    spans = read()
    seconds = time.perf_counter() - start
    return {"spans": spans, "seconds": seconds, "spans_per_s": spans / seconds, "peak_mb": _peak()}


def _peak() -> float:
    # What `getrusage` says of this process holds what its parent had when it was made.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0])
    # The largest of the children, for each of them.
    return (peak + PROCESSORS * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def _compile(path: Path) -> None:
    """Read the beginning of a capture, so that what reads it is compiled: once for an installation."""
    with tempfile.NamedTemporaryFile() as file, path.open("rb") as whole:
        file.write(whole.read(BEGINNING))
        file.flush()
        ours(file.name)()


def main() -> None:
    """Measure every reader, or, as `reading.py run READER PATH`, be one."""
    if sys.argv[1:2] == ["run"]:
        print(json.dumps(measure(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    spans = parser.parse_args().spans
    paths = capture(spans)
    paths["tenth"] = capture(spans // TENTH, ["json"])["json"]
    for form in ("json", "protobuf"):
        _compile(paths[form])
    found = {}
    for form, reader in RUNS:
        # Once to have the file in memory, whoever is first.
        paths[form].read_bytes()
        command = [sys.executable, __file__, "run", reader, str(paths[form])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[f"{form}_{reader}"] = json.loads(done.stdout)
        print(f"  {form:9} {reader:10} {done.stdout.strip()}", file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
