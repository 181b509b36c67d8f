"""How many spans a second a sidecar takes in, builds and exports to an OTLP gRPC server, and whether it loses any.

Three processes: this one sends records over the sidecar's socket as fast as it is read, the sidecar is the real one,
held to one core, and a server on the same host takes what it exports. The clock stops when the server has everything.
The records are made before it starts, and the server counts after it has stopped: the three share the machine.

    python benchmarks/sidecar_export.py [--spans 1000000] [--out FILE]

A hybrid model's replica with one worker: 15 steps for each request, each of them with its worker's span, and per
request a lookup with its groups, a store and an eviction. It prints one JSON object: spans a second, spans built,
received and lost, CPU time of the sidecar (all of it in seconds, and that for a span in us), and its memory (MiB) at
half time, at the end, and at most. Its tables, which are bounded, are full after some 800,000 spans.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_cache.records import (
    PROTOCOL_VERSION,
    Batch,
    Chunk,
    Evict,
    Executed,
    Finished,
    GroupPass,
    Hello,
    Lookup,
    Record,
    Replica,
    Step,
    StepDone,
    Store,
    encode_frame,
)
from otel_cache.semconv import names
from otel_cache.sidecar.status import query_status

BLOCK = 1600
STEPS = 15
"""Steps for each request, as at 30 steps and 2 requests a second: one that prefills, the others decode."""
REQUESTS_PER_FRAME = 32
SPANS_PER_REQUEST = 36
"""Two for each step, and the request's own: of its life, its lookup and three groups, its stores and its eviction."""
PASSES = [
    GroupPass([3], 11909, 9600, 1600, BLOCK),
    GroupPass([0, 1, 2], 9600, 0, 0, BLOCK),
    GroupPass([3], 0, 0, 0, BLOCK),
]
SETTINGS = {
    names.REPLICA_ID: "bench:8000",
    names.GROUPS_KIND: ["mamba", "mamba", "mamba", "full_attention"],
    names.GROUPS_BLOCK_SIZE: [BLOCK] * 4,
    names.HASH_BLOCK_SIZE: BLOCK,
    names.HIT_ALIGNMENT: BLOCK,
}


def frames() -> Iterator[tuple[bytes, bytes]]:
    """Yield frames of a replica's records, and of its worker's.

    Each request is looked up, stores, evicts, decodes and finishes.
    """
    number = index = request = 0
    records: list[Record] = [Replica(0, 0, time.time_ns(), SETTINGS)]
    executed: list[Record] = [Replica(0, 0, time.time_ns(), {**SETTINGS, names.WORKER_RANK: 0})]
    while True:
        for _ in range(REQUESTS_PER_FRAME):
            name = f"cmpl-{request:032x}-0"
            now = time.time_ns()
            number += 1
            records.append(
                Lookup(
                    number, 0, now, now + 20_000, name, 11910, 11910, 11909, 0, 9600, False, PASSES,
                    [None, None, None, BLOCK], os.urandom(56), b"", b"", os.urandom(8 * 48), os.urandom(8), b"", "",
                    now - 1000, step=index,
                )
            )  # fmt: skip
            for group in range(4):
                stored = [(1600, 11200, BLOCK)] if group == 3 else [(9600, 9600, BLOCK)]
                number += 1
                records.append(Store(number, 0, now, name, group, stored, [], [(1600, 6400, BLOCK)], [], 0, b""))
            number += 1
            records.append(
                Evict(number, 0, now, 3, [3200, 1600], os.urandom(16), [], [10**9, 10**9], [11, 12], "allocation")
            )
            for step in range(STEPS):
                chunks = [Chunk(name, 0, 11910, True)] if step == 0 else []
                admitted = {name: 0} if step == 0 else {}
                finished = [name] if step == STEPS - 1 else []
                if finished:
                    number += 1
                    records.append(Finished(number, 0, now + step, name, "stop", STEPS, 0, 0, 0))
                number += 2
                prefill = 11910 if chunks else 0
                context = os.urandom(24)
                records.append(
                    Step(
                        number - 1, 0, index, now, now + 300_000, 64, 6, 64, prefill, 63, chunks, admitted, finished,
                        [], 0.5, {11: name, 12: name} if chunks else {}, context,
                    )
                )  # fmt: skip
                records.append(StepDone(number, 0, index, now + 20_000_000, now + 20_100_000))
                index += 1
                executed.append(Executed(index, 0, index - 1, context, now + 400_000, now + 19_000_000))
            request += 1
        yield encode_frame(Batch(0, records)), encode_frame(Batch(0, executed))
        records, executed = [], []


def serve() -> None:
    """Take OTLP by gRPC; print the port, then at the end of stdin how many spans came."""
    received: list[bytes] = []

    def export(data: bytes, _: grpc.ServicerContext) -> bytes:
        received.append(data)
        return b""

    method = grpc.unary_unary_rpc_method_handler(export)
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": method})])
    print(server.add_insecure_port("localhost:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(1).wait()
    requests = map(ExportTraceServiceRequest.FromString, received)
    print(sum(len(s.spans) for request in requests for each in request.resource_spans for s in each.scope_spans))


def measure(spans: int, out: str | None) -> dict[str, float]:
    """Run the three processes on about so many spans; return what came out."""
    made = list(islice(frames(), max(spans // (REQUESTS_PER_FRAME * SPANS_PER_REQUEST), 2)))
    folder = tempfile.mkdtemp(prefix="oc-")
    path = str(Path(folder) / "s")
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    endpoint = f"http://localhost:{server.stdout.readline().strip()}"
    command = [sys.executable, "-m", "otel_cache.sidecar", "--socket", path, "--endpoint", endpoint]
    environment = {**os.environ, "XDG_STATE_HOME": folder}
    sidecar = subprocess.Popen([*command, "--out", out] if out else command, env=environment)
    process = psutil.Process(sidecar.pid)
    # The highest core: others start at the lowest.
    process.cpu_affinity([max(process.cpu_affinity())])
    while not Path(path).exists():
        time.sleep(0.05)
    try:
        with socket.socket(socket.AF_UNIX) as core, socket.socket(socket.AF_UNIX) as worker:
            for peer in (core, worker):
                peer.connect(path)
                hello = Hello(PROTOCOL_VERSION, os.urandom(16).hex(), os.getpid(), time.time_ns(), "0")
                peer.sendall(encode_frame(hello))
            first = highest = 0
            began, cpu = time.monotonic(), sum(process.cpu_times()[:2])
            for number, (of_core, of_worker) in enumerate(made):
                core.sendall(of_core)
                worker.sendall(of_worker)
                highest = max(highest, memory := process.memory_info().rss)
                if number == len(made) // 2:
                    first = memory
        while (status := query_status(path, 60)).processes or status.spans_waiting:
            time.sleep(0.02)
        while status.spans_exported + status.spans_lost < status.spans_built:
            time.sleep(0.05)
            status = query_status(path, 60)
        took = time.monotonic() - began
        last, cpu = process.memory_info().rss, sum(process.cpu_times()[:2]) - cpu
    finally:
        sidecar.terminate()
        sidecar.wait(60)
        received = int(server.communicate(timeout=300)[0])
        shutil.rmtree(folder)
    return {
        "sidecar_spans_per_s": round(status.spans_built / took),
        "sidecar_lost": status.spans_built - received,
        "sidecar_spans": status.spans_built,
        "sidecar_received": received,
        "sidecar_seconds": round(took, 2),
        "sidecar_cpu_seconds": round(cpu, 2),
        "sidecar_cpu_us_per_span": round(cpu / status.spans_built * 1e6, 2),
        "sidecar_rss_half_mib": round(first / (1 << 20), 1),
        "sidecar_rss_end_mib": round(last / (1 << 20), 1),
        "sidecar_rss_highest_mib": round(max(highest, last) / (1 << 20), 1),
    }


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--spans", type=int, default=1_000_000, help="about how many spans (1000000)")
    parser.add_argument("--out", help="let the sidecar write its file of evidence as well")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    print(json.dumps(measure(options.spans, options.out), indent=1))


if __name__ == "__main__":
    main()
