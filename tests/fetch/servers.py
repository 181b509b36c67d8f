"""Real HTTP servers for tests: they answer as Tempo and Jaeger do, or in any way that goes wrong.

A Tempo cannot be had here, so `Tempo` answers with Tempo's own shapes: Protobuf's JSON of OTLP messages, in the
wrappers of `tempopb.TraceByIDResponse`, `tempopb.Trace` (`batches`) and `tempopb.SearchResponse`, with its sentences of
refusal.
"""

import base64
import json
import re
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from google.protobuf.json_format import MessageToDict, ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from readers.test_jaeger_json import jaeger as jaeger_trace

from otel_cache.semconv import names

SECOND = 1_000_000_000
Json = dict[str, Any]
Reply = tuple[int, Any]
"""A status, and a body: bytes, text, or what becomes JSON."""


class _Http(ThreadingHTTPServer):
    """A server that does not mind a client that goes away while it is answered."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """An HTTP server on a free port that answers what `answer` gives.

    Attributes:
        asked: paths with their parameters, in order; `headers`: of each request.

    """

    def __init__(self, answer: Callable[[str, Mapping[str, str]], Reply], certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: list[Mapping[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                parameters = {key: values[0] for key, values in parse_qs(parts.query).items()}
                server.asked.append((parts.path, parameters))
                server.headers.append(dict(self.headers))
                status, body = answer(parts.path, parameters)
                headers = body.pop("_headers", {}) if isinstance(body, dict) else {}
                data = body if isinstance(body, bytes) else body if isinstance(body, str) else json.dumps(body)
                data = data if isinstance(data, bytes) else data.encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = _Http(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = f"{'http' if certificate is None else 'https'}://localhost:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def protobuf_json(message: Mapping[str, Any]) -> Json:
    """Return an OTLP JSON message as Protobuf's general JSON has it: ids in base64, enumerations by name."""
    changed = json.loads(json.dumps(message))
    for resource in changed["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for each in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in each:
                            each[key] = base64.b64encode(bytes.fromhex(each[key])).decode()
    return dict(MessageToDict(ParseDict(changed, TracesData())))


def by_trace(messages: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """Return a message for each trace in `messages`, by its id."""
    found: dict[str, Json] = {}
    for message in messages:
        for resource in message["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    whole = found.setdefault(span["traceId"], {"resourceSpans": []})
                    part = {"resource": resource["resource"], "scopeSpans": [{**scope, "spans": [span]}]}
                    whole["resourceSpans"].append(part)
    return found


def spans_of(message: Mapping[str, Any]) -> list[tuple[Json, Json]]:
    """Return the spans of a message, each with the attributes of its resource."""
    return [
        ({each["key"]: next(iter(each["value"].values())) for each in resource["resource"]["attributes"]}, span)
        for resource in message["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


class Tempo:
    """What a Tempo holds, and how it answers."""

    def __init__(
        self, messages: Sequence[Mapping[str, Any]], *, max_limit: int = 0, max_seconds: int = 0, newer: bool = True
    ) -> None:
        """Hold `messages`.

        Args:
            max_limit: `max_result_limit`; `max_seconds`: `max_duration` of the search's configuration; 0: none.
            newer: it has `/api/v2/traces`.

        """
        self.traces = by_trace(messages)
        self.max_limit, self.max_seconds, self.newer = max_limit, max_seconds, newer
        self.partial: set[str] = set()
        self.gone: set[str] = set()
        self.too_large: set[str] = set()

    def __call__(self, path: str, parameters: Mapping[str, str]) -> Reply:
        """Answer."""
        if path == "/api/search":
            return self._search(parameters)
        if path == "/api/search/tag/service.name/values":
            services = {attributes["service.name"] for each in self.traces.values() for attributes, _ in spans_of(each)}
            return 200, {"tagValues": sorted(services), "metrics": {"inspectedBytes": "1"}}
        if path.startswith("/api/v2/traces/") and self.newer:
            return self._newer(path.rpartition("/")[2])
        if path.startswith("/api/traces/"):
            trace = self._found(path.rpartition("/")[2])
            if trace in self.too_large:
                return 422, "trace exceeds max size (max bytes: 5000000)"
            return (
                (404, "") if trace is None else (200, {"batches": protobuf_json(self.traces[trace])["resourceSpans"]})
            )
        return 404, "404 page not found\n"

    def _newer(self, trace_id: str) -> Reply:
        trace = self._found(trace_id)
        if trace is None:
            return 404, "trace not found"
        answer: Json = {"trace": protobuf_json(self.traces[trace]), "metrics": {"inspectedBytes": "1"}}
        if trace in self.partial:
            says = "Trace exceeds maximum size of 5000000 bytes, a partial trace is returned"
            answer |= {"status": "PARTIAL", "message": says}
        return 200, answer

    def _found(self, trace_id: str) -> str | None:
        return trace_id if trace_id in self.traces and trace_id not in self.gone else None

    def _search(self, parameters: Mapping[str, str]) -> Reply:
        begin, end, limit = (int(parameters[key]) for key in ("start", "end", "limit"))
        if self.max_limit and limit > self.max_limit:
            return 400, f"limit {limit} exceeds max limit {self.max_limit}"
        if self.max_seconds and end - begin > self.max_seconds:
            asked = f"received start={begin} end={end}"
            return 400, f"range specified by start and end exceeds {self.max_seconds}s. {asked}"
        service = re.search(r'service\.name = "(.*)" }', parameters["q"])
        assert f"resource.{names.REPLICA_ID} != nil" in parameters["q"]

        def matches(attributes: Json, span: Json) -> bool:
            inside = begin * SECOND <= int(span["startTimeUnixNano"]) < end * SECOND
            return (
                inside and names.REPLICA_ID in attributes and (not service or attributes["service.name"] == service[1])
            )

        found = [
            # Without leading zeros, as Tempo has it unless it is told otherwise.
            {"traceID": trace_id.lstrip("0"), "rootServiceName": "vllm", "startTimeUnixNano": "1", "durationMs": 1}
            for trace_id, message in self.traces.items()
            if any(matches(*each) for each in spans_of(message))
        ]
        metrics = {"inspectedTraces": 1, "totalBlocks": 1}
        return 200, {"traces": found[:limit], "metrics": metrics} if found else {"metrics": metrics}


class Jaeger:
    """What a Jaeger holds, and how its query API answers; the real one is in the end-to-end tests.

    Attributes:
        newer: it has `/api/v3`; `page`: what it has not it answers with its page, as one that serves it does.
        max_traces: what its storage holds at most, and so what may be asked of it; 0: no bound.
        stream: `/api/v3` answers trace by trace, as the gateway of older versions did.

    """

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.traces = by_trace(messages)
        self.newer, self.page, self.stream, self.max_traces = True, False, False, 0
        self._lines: dict[str, str] = {}

    def __call__(self, path: str, parameters: Mapping[str, str]) -> Reply:
        """Answer."""
        services: dict[str, set[str]] = {}
        for message in self.traces.values():
            for attributes, span in spans_of(message):
                services.setdefault(attributes["service.name"], set()).add(span["name"])
        if path.startswith("/api/v3/") and self.newer:
            match path.removeprefix("/api/v3/"):
                case "services":
                    return 200, {"services": sorted(services)} if services else {}
                case "operations":
                    found = services.get(parameters["service"], set())
                    return 200, {"operations": [{"name": each, "spanKind": "internal"} for each in sorted(found)]}
                case "traces":
                    return self._newer(parameters)
        match path:
            case "/api/services":
                return 200, {"data": sorted(services), "total": len(services), "limit": 0, "offset": 0, "errors": None}
            case "/api/operations":
                found = services.get(parameters["service"], set())
                data = [{"name": each, "spanKind": "internal"} for each in sorted(found)]
                return 200, {"data": data, "total": len(data), "limit": 0, "offset": 0, "errors": None}
            case "/api/traces":
                begin, end = (1000 * int(parameters[key]) for key in ("start", "end"))
                assert parameters["raw"] == "true"
                traces = self._between(parameters["service"], begin, end)[: int(parameters["limit"])]
                data = [jaeger_trace(self.traces[each]) for each in traces]
                return 200, {"data": data, "total": 0, "limit": 0, "offset": 0, "errors": None}
        return (200, "<!doctype html><title>Jaeger UI</title>") if self.page else (404, "404 page not found\n")

    def _newer(self, parameters: Mapping[str, str]) -> Reply:
        limit = int(parameters["query.num_traces"])
        assert parameters["query.raw_traces"] == "true"
        if self.max_traces and limit > self.max_traces:
            says = "search depth must be greater than 0 and less than max traces"
            return 500, {"error": {"httpCode": 500, "message": says}}
        begin, end = (nanoseconds(parameters[f"query.start_time_{key}"]) for key in ("min", "max"))
        traces = self._between(parameters["query.service_name"], begin, end)[:limit]
        if not traces:
            return 404, {"error": {"httpCode": 404, "message": "No traces found"}}
        if self.stream:
            for each in traces:
                if each not in self._lines:
                    self._lines[each] = json.dumps({"result": protobuf_json(self.traces[each])})
            return 200, "\n".join(self._lines[each] for each in traces)
        parts = [part for each in traces for part in self.traces[each]["resourceSpans"]]
        return 200, {"result": {"resourceSpans": parts}}

    def _between(self, service: str, begin: int, end: int) -> list[str]:
        return [
            trace_id
            for trace_id, message in self.traces.items()
            if any(
                attributes["service.name"] == service and begin <= int(span["startTimeUnixNano"]) <= end
                for attributes, span in spans_of(message)
            )
        ]


def nanoseconds(written: str) -> int:
    """Return a time in RFC 3339 with nine digits of a second, as ns since the epoch."""
    seconds, rest = written.removesuffix("Z").split(".")
    return int(datetime.fromisoformat(f"{seconds}+00:00").timestamp()) * SECOND + int(rest)
