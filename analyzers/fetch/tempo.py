"""Tempo's API: its search names traces, and each of them is then asked for by its id.

A search returns any traces that match, so many at most, within a range that Tempo may limit; times are whole seconds.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from analyzers.fetch.client import Answer, Client
from analyzers.fetch.windows import Page, Window, WindowTooWideError
from analyzers.readers import otlp_dialects
from otel_cache.errors import FetchError
from otel_cache.semconv import names

SECOND = 1_000_000_000
AT_ONCE = 8
"""Traces that are asked for at a time."""
BATCH = 256
SHOWN = 20
ANY = ""
"""Whatever service."""
_MAX_LIMIT = re.compile(r"exceeds max limit (\d+)")
_TOO_WIDE = re.compile(r"range specified by start and end.* exceeds ")


class Tempo:
    """A Tempo at the other end of `client`; attributes as of `Jaeger`."""

    name = "Tempo"
    finest = SECOND

    def __init__(self, client: Client) -> None:
        """Ask nothing yet."""
        self.notes: list[str] = []
        self._client = client
        self._cap = sys.maxsize
        self._loaded: set[str] = set()
        self._second_api: bool | None = None

    def services(self, wanted: Sequence[str]) -> list[str]:
        """Return the services to ask for: `wanted`, or any."""
        return list(wanted) or [ANY]

    def search(self, service: str, window: Window, limit: int) -> Page:
        """Return the traces of `service` with a span of ours in `window`, `limit` at most; loaded as they are read.

        Raises:
            FetchError: Tempo cannot answer.
            WindowTooWideError: it answers for less time only.

        """
        query = f"resource.{names.REPLICA_ID} != nil"
        if service != ANY:
            query += f" && resource.service.name = {json.dumps(service, ensure_ascii=False)}"
        while True:
            asked = min(limit, self._cap)
            answer = self._client.get(
                "/api/search",
                {
                    "q": f"{{ {query} }}",
                    "start": window.begin // SECOND,
                    "end": -(-window.end // SECOND),
                    "limit": asked,
                    "spss": 1,
                },
            )
            says = answer.says()
            if answer.status == 400 and _TOO_WIDE.search(says):
                raise WindowTooWideError(f"{self._client.url}: {says}")
            refused = _MAX_LIMIT.search(says) if answer.status == 400 else None
            if refused is None or not 0 < int(refused[1]) < asked:
                break
            self._cap = int(refused[1])
        found = _trace_ids(answer)
        if found is None:
            raise self._refused(answer, "/api/search")
        return Page(len(found), asked, self._load([one for one in found if one not in self._loaded]))

    def nothing(self, service: str, window: Window) -> str:
        """Return why nothing of `service` may have been found in `window`."""
        if service == ANY:
            return f"Tempo has no span of otel_cache from {window}; do the sidecars export to it, to this tenant?"
        tags = self._client.get(
            "/api/search/tag/service.name/values",
            {"start": window.begin // SECOND, "end": -(-window.end // SECOND)},
        ).json()
        there = tags.get("tagValues") if isinstance(tags, dict) else None
        if not isinstance(there, list) or service in there:
            return f"Tempo has no span of otel_cache of the service {service} from {window}; ask for more by --since"
        shown = ", ".join(sorted(map(str, there))[:SHOWN]) or "none"
        return f"Tempo has no service {service} from {window}; it has {shown}"

    def _load(self, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for first in range(0, len(ids), BATCH):
                batch = ids[first : first + BATCH]
                for trace_id, (trace, note) in zip(batch, threads.map(self._trace, batch), strict=True):
                    self._loaded.add(trace_id)
                    if note:
                        self.notes.append(f"trace {trace_id}: {note}")
                    if trace is not None:
                        yield trace

    def _trace(self, trace_id: str) -> tuple[dict[str, Any] | None, str]:
        """Return a trace, None where it is gone, and what of it is not whole."""
        answer = self._ask_trace(trace_id)
        body = answer.json()
        if answer.status == 404:
            return None, "Tempo found it and has it no more"
        if answer.status == 422:
            return None, f"Tempo does not give it ({answer.says()})"
        trace = otlp_dialects.to_otlp(body) if answer.status == 200 and isinstance(body, dict) else None
        if trace is None:
            raise self._refused(answer, "/api/traces")
        # Newer ones answer with the trace and its status, {"trace": ..., "status": "PARTIAL", "message": ...}.
        partly = body.get("status") in ("PARTIAL", 1)
        return trace, f"Tempo gives a part of it ({body.get('message') or 'it does not say why'})" if partly else ""

    def _ask_trace(self, trace_id: str) -> Answer:
        """Ask the newer API, which tells what is only a part; Tempos before 2.7 have the older one alone."""
        ask = partial(self._client.get, parameters=None)
        if self._second_api is not False:
            answer = ask(f"/api/v2/traces/{trace_id}")
            if answer.status != 404:
                self._second_api = True
                return answer
        older = ask(f"/api/traces/{trace_id}")
        if older.status == 200 and self._second_api is None:
            self._second_api = False
        return older

    def _refused(self, answer: Answer, path: str) -> FetchError:
        says = answer.says()
        if answer.status == 200:
            what = f"{path} answers something else than Tempo does"
        else:
            what = f"{path} answers {answer.status}{f': {says}' if says else ''}"
        if answer.status in (200, 404, 405):
            what += "; is this the API of a Tempo (port 3200), with the path that it is served under?"
        return FetchError(f"{self._client.url}: {what}")


def _trace_ids(answer: Answer) -> list[str] | None:
    """Return the ids of the traces that a search found, each once; None where this is no answer of Tempo's."""
    body = answer.json()
    if answer.status != 200 or not isinstance(body, dict) or (body and not body.keys() & {"traces", "metrics"}):
        return None
    found = body.get("traces") or []
    if not isinstance(found, list) or not all(isinstance(each, dict) and each.get("traceID") for each in found):
        return None
    return list(dict.fromkeys(str(each["traceID"]).rjust(32, "0") for each in found))
