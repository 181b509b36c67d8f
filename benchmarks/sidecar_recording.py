"""Records of a real run, for benchmarks: vLLM's own scheduler under the plugin, and a socket that keeps all it gets."""

import os
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from analyzers.vllm_lab.run import LabWorker
from analyzers.vllm_lab.scenario import parse_scenario
from otel_cache.records import LENGTH, PROTOCOL_VERSION, Batch, Hello, Record, Replica, decode_payload, encode_frame

RUNNING = 64
FRAME_RECORDS = 256


def scenarios() -> list[dict[str, Any]]:
    """Return a dense and a hybrid replica with 64 running requests each, which prefill and decode, hit and evict."""
    dense = {"groups": [{"kind": "full_attention"}], "block_size": 16, "num_gpu_blocks": 4500}
    hybrid = {
        "groups": [{"kind": "mamba", "layers": 3}, {"kind": "full_attention"}],
        "block_size": 1600, "num_gpu_blocks": 700, "speculative": {"method": "mtp", "num_speculative_tokens": 2},
    }  # fmt: skip
    common = {"max_num_seqs": RUNNING, "max_num_batched_tokens": 8192}
    return [
        {"engine": {**common, **dense}, "requests": _requests(1200, 40)},
        {"engine": {**common, **hybrid}, "requests": _requests(6000, 20)},
    ]


def _requests(tokens: int, kinds: int) -> list[dict[str, Any]]:
    """Return requests that all start at once and queue: a shared start, ends and lengths of their own, sent twice."""
    return [
        {
            "id": f"kind{kind}",
            "prompt": [
                {"segment": "system", "tokens": tokens // 2},
                {"segment": f"document{kind // 2}", "tokens": tokens // 2 + 37 * kind},
            ],
            "output_tokens": 40 + 7 * (kind % 30),
            "times": 5,
            **({"with": "kind0"} if kind else {}),
        }
        for kind in range(kinds)
    ]


def record() -> list[list[Record]]:
    """Run the scenarios and return the batches of records that the plugin sent, in order, replica after replica."""
    batches: list[list[Record]] = []
    with tempfile.TemporaryDirectory(prefix="oc-", dir="/tmp") as folder, LabWorker() as worker:
        for number, scenario in enumerate(scenarios()):
            path = Path(folder) / str(number)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen()
                received: list[Batch] = []
                thread = threading.Thread(target=_receive, args=(listener, received), daemon=True)
                thread.start()
                worker._ask(parse_scenario(scenario), path)
                thread.join()
            # The plugin gathers more than usual in one frame, since the lab runs faster than any engine.
            records = [record for batch in received for record in batch.records]
            batches += [records[at : at + FRAME_RECORDS] for at in range(0, len(records), FRAME_RECORDS)]
    return batches


def _receive(listener: socket.socket, batches: list[Batch]) -> None:
    connection = listener.accept()[0]
    with connection, connection.makefile("rb") as stream:
        while len(head := stream.read(LENGTH.size)) == LENGTH.size:
            message = decode_payload(stream.read(*LENGTH.unpack(head)))
            if isinstance(message, Batch):
                batches.append(message)


class Replay:
    """The same records again and again, each time as later ones of the same process with other request ids."""

    def __init__(self, batches: Sequence[Sequence[Record]]) -> None:
        """Take the batches of a recording."""
        self._batches = batches
        self._sequence = 0

    def frames(self, turn: int) -> Iterator[bytes]:
        """Yield the payloads of the turn's frames."""
        for batch in self._batches:
            # Settings are sent but once.
            records = [self._renamed(record, turn) for record in batch if not (turn and isinstance(record, Replica))]
            yield encode_frame(Batch(0, records))[LENGTH.size :]

    def _renamed(self, record: Record, turn: int) -> Record:
        changes: dict[str, Any] = {"sequence": self._sequence}
        self._sequence += 1
        suffix = f"-{turn:08x}"
        for name in ("request", "owners", "chunks", "admitted", "finished", "preempted"):
            value = getattr(record, name, None)
            if isinstance(value, str):
                changes[name] = value + suffix
            elif name == "chunks" and value:
                changes[name] = [msgspec.structs.replace(chunk, request=chunk.request + suffix) for chunk in value]
            elif name == "owners" and value:
                changes[name] = {block: request + suffix for block, request in value.items()}
            elif name == "admitted" and value:
                changes[name] = {request + suffix: tokens for request, tokens in value.items()}
            elif value:
                changes[name] = [request + suffix for request in value]
        return msgspec.structs.replace(record, **changes)


def hello() -> Hello:
    """Return the hello of the process that the records are replayed as."""
    return Hello(PROTOCOL_VERSION, "benchmark", os.getpid(), 1, "0")
