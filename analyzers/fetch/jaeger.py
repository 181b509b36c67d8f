"""Jaeger's query API: `/api/v3`, which answers in OTLP, and the older one, which answers in Jaeger's own JSON.

Both give whole traces of a service that have a span in a window of time, so many at most, as they were stored (`raw`:
otherwise Jaeger moves times to hide clock skew).
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from analyzers.fetch.client import Answer, Client
from analyzers.fetch.windows import Page, Window
from analyzers.readers import jaeger_json, otlp_dialects
from otel_cache.errors import FetchError
from otel_cache.semconv import names

Api = Literal["auto", "v3", "json"]

SECOND = 1_000_000_000
SHOWN = 20
OURS = frozenset([names.REQUEST, names.LOOKUP, names.STORE, names.EVICT, names.STEP])
"""Operations that tell a service of ours."""


class Jaeger:
    """A Jaeger at the other end of `client`.

    Attributes:
        name: what it is called in sentences.
        finest: ns; no window is narrower.
        notes: what of the traces is not whole, a sentence each.

    """

    name = "Jaeger"
    finest = 1_000

    def __init__(self, client: Client, api: Api = "auto") -> None:
        """Ask nothing yet."""
        self.notes: list[str] = []
        self._client = client
        self._api: Api = api
        self._cap = sys.maxsize

    def services(self, wanted: Sequence[str]) -> list[str]:
        """Return the services to ask for: `wanted`, or where that is empty all that have spans of ours.

        Raises:
            FetchError: this is no Jaeger, it lacks a service that is wanted, or none has spans of ours.

        """
        there = self._services()
        shown = ", ".join(sorted(there)[:SHOWN]) or "none"
        if len(there) > SHOWN:
            shown += f" and {len(there) - SHOWN} more"
        for service in wanted:
            if service not in there:
                raise FetchError(f"{self._client.url}: Jaeger has no service {service}; it has {shown}")
        found = list(wanted) or [service for service in sorted(there) if self._operations(service) & OURS]
        if not found:
            raise FetchError(
                f"{self._client.url}: no service in this Jaeger has spans of otel_cache; it has {shown}. Do the "
                "sidecars export to it? `otel-cache doctor` says"
            )
        return found

    def search(self, service: str, window: Window, limit: int) -> Page:
        """Return the traces of `service` with a span that begins in `window`, `limit` at most.

        Raises:
            FetchError: Jaeger cannot answer.

        """
        while True:
            asked = min(limit, self._cap)
            answer = self._find(service, window, asked)
            if answer.status == 200 or asked == 1 or "search depth" not in answer.says().lower():
                break
            # A storage in memory is not asked for more than it may hold.
            self._cap = asked // 2
        traces = self._traces(answer)
        count = len({span.get("traceId") for trace in traces for _, span in otlp_dialects.spans_of(trace)})
        return Page(count, asked, traces)

    def nothing(self, service: str, window: Window) -> str:
        """Return why nothing of `service` may have been found in `window`."""
        return f"Jaeger has the service {service}, and no trace of it from {window}; ask for more by --since"

    def _services(self) -> list[str]:
        if self._api in ("auto", "v3"):
            answer = self._client.get("/api/v3/services")
            found = _strings(answer, "services")
            if found is not None:
                self._api = "v3"
                return found
            if self._api == "v3" or answer.status not in (200, 404):
                raise self._refused(answer, "/api/v3/services")
        answer = self._client.get("/api/services")
        found = _strings(answer, "data")
        if found is None:
            raise self._refused(answer, "/api/services")
        self._api = "json"
        return found

    def _operations(self, service: str) -> set[str]:
        path, key = ("/api/v3/operations", "operations") if self._api == "v3" else ("/api/operations", "data")
        answer = self._client.get(path, {"service": service})
        body = answer.json()
        if answer.status != 200 or not isinstance(body, dict):
            raise self._refused(answer, path)
        return {str(each.get("name")) for each in body.get(key) or () if isinstance(each, dict)}

    def _find(self, service: str, window: Window, limit: int) -> Answer:
        if self._api == "v3":
            return self._client.get(
                "/api/v3/traces",
                {
                    "query.service_name": service,
                    "query.start_time_min": _rfc3339(window.begin),
                    "query.start_time_max": _rfc3339(window.end),
                    # Called the one in some versions, the other in others.
                    "query.num_traces": limit,
                    "query.search_depth": limit,
                    "query.raw_traces": "true",
                },
            )
        return self._client.get(
            "/api/traces",
            {
                "service": service,
                "start": window.begin // 1000,
                "end": -(-window.end // 1000),
                "limit": limit,
                "raw": "true",
            },
        )

    def _traces(self, answer: Answer) -> list[dict[str, Any]]:
        path = "/api/v3/traces" if self._api == "v3" else "/api/traces"
        body = answer.json()
        if self._api == "v3" and answer.status == 404 and isinstance(body, dict):
            return []  # "No traces found"
        if answer.status != 200:
            raise self._refused(answer, path)
        if self._api == "v3":
            parts = body if isinstance(body, list) else [body]
            traces = [otlp_dialects.to_otlp(part) if isinstance(part, dict) else None for part in parts]
            if None in traces:
                raise self._refused(answer, path)
            return [trace for trace in traces if trace is not None]
        data = body.get("data") if isinstance(body, dict) else None
        if not isinstance(data, list | None) or not isinstance(body, dict):
            raise self._refused(answer, path)
        found = [trace for trace in data or () if jaeger_json.is_trace(trace)]
        self._note(found)
        return [jaeger_json.to_otlp(trace) for trace in found]

    def _note(self, traces: Sequence[Mapping[str, Any]]) -> None:
        for trace in traces:
            for warning in trace.get("warnings") or ():
                self.notes.append(f"trace {trace['traceID']}: Jaeger says: {warning}")

    def _refused(self, answer: Answer, path: str) -> FetchError:
        says = answer.says()
        if answer.status == 200:
            what = f"{path} answers something else than Jaeger does"
        else:
            what = f"{path} answers {answer.status}{f': {says}' if says else ''}"
        if answer.status in (200, 404, 405):
            what += "; is this the query API of a Jaeger (port 16686), with the path that it is served under?"
        return FetchError(f"{self._client.url}: {what}")


def _strings(answer: Answer, key: str) -> list[str] | None:
    """Return the list at `key`, empty where that is left out; None where this is no answer of Jaeger's."""
    body = answer.json()
    if (
        answer.status != 200
        or not isinstance(body, dict)
        or not body.keys() <= {key, "total", "limit", "offset", "errors"}
    ):
        return None
    found = body.get(key) or []
    return [str(each) for each in found] if isinstance(found, list) else None


def _rfc3339(time: int) -> str:
    seconds, nanoseconds = divmod(time, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
