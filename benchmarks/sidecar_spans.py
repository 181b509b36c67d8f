"""How many spans a second the sidecar makes on one core, from frames to OTLP bytes, and whether its memory is flat.

    python benchmarks/sidecar_spans.py [--spans 2000000]

Records a run of vLLM's own scheduler under the plugin, replays it with new request ids, and prints one JSON object:

    spans, spans_by_name, records, bytes_per_span   what was replayed
    spans_per_second                                frames to OTLP bytes: the median of the windows
    spans_per_second_best                           the best window, for a machine that is shared with others
    spans_per_second_sdk                            the same with the SDK's spans and encoder instead, best window
    microseconds                                    of the best window, per span: decode, build, encode, encode_sdk
    rss_mib_warm, rss_mib_growth                    peak memory after the first tenth, and its growth until the end

Times are those of the process, so that others on the core count less.
"""

import argparse
import gc
import json
import resource
from collections import Counter
from collections.abc import Sequence
from time import process_time

import sidecar_recording
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans

from otel_cache.records import Batch, decode_payload
from otel_cache.sidecar.build import ProcessBuilder
from otel_cache.sidecar.otlp_protobuf import encode_spans
from otel_cache.sidecar.spans import SpanData, to_readable

SDK_WINDOWS = 3


class Window:
    """What one replay of the recording took, in seconds of this process."""

    def __init__(self, builder: ProcessBuilder, frames: Sequence[bytes], *, sdk: bool) -> None:
        """Build and encode all frames; with `sdk` by the SDK's encoder as well."""
        self.decode = self.build = self.encode = self.encode_sdk = 0.0
        self.spans = self.bytes = self.records = 0
        self.names: Counter[str] = Counter()
        for frame in frames:
            started = process_time()
            batch = decode_payload(frame)
            assert isinstance(batch, Batch)
            decoded = process_time()
            spans = builder.add(batch)
            built = process_time()
            encoded = encode_spans(spans)
            done = process_time()
            self.decode += decoded - started
            self.build += built - decoded
            self.encode += done - built
            self.bytes += len(encoded)
            self.spans += len(spans)
            self.records += len(batch.records)
            self.names.update(span.name for span in spans)
            if sdk:
                self._encode_sdk(spans)

    def _encode_sdk(self, spans: Sequence[SpanData]) -> None:
        started = process_time()
        sdk_encode_spans([to_readable(span) for span in spans]).SerializeToString()
        self.encode_sdk += process_time() - started

    @property
    def rate(self) -> float:
        """Spans per second from frames to OTLP bytes."""
        return self.spans / (self.decode + self.build + self.encode)

    @property
    def rate_sdk(self) -> float:
        """The same with the SDK's encoder."""
        return self.spans / (self.decode + self.build + self.encode_sdk)

    def microseconds(self, seconds: float) -> float:
        """Return a time per span."""
        return round(seconds / self.spans * 1e6, 2)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spans", type=int, default=2_000_000, help="how many spans to make (2000000)")
    wanted = parser.parse_args().spans
    replay = sidecar_recording.Replay(sidecar_recording.record())
    gc.collect()
    builder = ProcessBuilder(sidecar_recording.hello())
    windows: list[Window] = []
    spans = warm = 0
    while spans < wanted or len(windows) <= SDK_WINDOWS:
        frames = list(replay.frames(len(windows)))
        windows.append(Window(builder, frames, sdk=len(windows) < SDK_WINDOWS))
        spans += windows[-1].spans
        if spans * 10 >= wanted and not warm:
            warm = peak()
    assert not builder.failed
    # The windows with the SDK in them have its memory and its garbage beside the sidecar's.
    ours = sorted(windows[SDK_WINDOWS:], key=lambda window: window.rate)
    best, sdk = ours[-1], max(windows[:SDK_WINDOWS], key=lambda window: window.rate_sdk)
    result = {
        "spans": spans,
        "spans_by_name": dict(sum((window.names for window in windows), Counter())),
        "records": sum(window.records for window in windows),
        "bytes_per_span": round(sum(window.bytes for window in windows) / spans),
        "spans_per_second": round(ours[len(ours) // 2].rate),
        "spans_per_second_best": round(best.rate),
        "spans_per_second_sdk": round(sdk.rate_sdk),
        "microseconds": {
            "decode": best.microseconds(best.decode),
            "build": best.microseconds(best.build),
            "encode": best.microseconds(best.encode),
            "encode_sdk": sdk.microseconds(sdk.encode_sdk),
        },
        "rss_mib_warm": round(warm / 1024, 1),
        "rss_mib_growth": round((peak() - warm) / 1024, 1),
    }
    print(json.dumps(result, indent=1))


def peak() -> int:
    """Return the process's peak memory in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
