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
DUCKDB = """
create table spans as
with resources as (
    select unnest(resourceSpans) r from read_json(?, format = 'newline_delimited', maximum_object_size = 268435456)
), scopes as (select unnest(r.scopeSpans) s from resources), spans as (select unnest(s.spans) p from scopes)
select p.traceId, p.spanId, p.parentSpanId, p.name, p.startTimeUnixNano, p.endTimeUnixNano, p.attributes from spans
"""


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
    from analyzers.analysis import analyze
    from analyzers.readers import open_capture

    start = time.perf_counter()
    capture = open_capture(path)
    read = time.perf_counter()
    lookups = len(analyze(capture).lookups)
    end = time.perf_counter()
    return {"spans": capture.spans, "lookups": lookups, "read_seconds": read - start, "analyze_seconds": end - read}


def tracelift(path: str) -> Callable[[], int]:
    """Read with tracelift: a fixed set of attributes."""
    import tracelift

    return lambda: int(tracelift.load(path).df.height)


def duckdb(path: str) -> Callable[[], int]:
    """Read with duckdb: spans as rows, attributes as lists of structs."""
    import duckdb

    def read() -> int:
        connection = duckdb.connect()
        connection.execute(f"set threads = {PROCESSORS}")
        connection.execute(DUCKDB, [path])
        return int(connection.execute("select count(*) from spans").fetchall()[0][0])

    return read


READERS = {"ours": ours, "whole": whole, "tracelift": tracelift, "duckdb": duckdb}
RUNS = (
    ("json", "ours"), ("json", "tracelift"), ("json", "duckdb"), ("protobuf", "ours"), ("parquet", "ours"),
    ("json", "analysis"), ("parquet", "whole"), ("shared", "analysis"),
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
    paths = capture(parser.parse_args().spans)
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
