"""Jaeger: one HTTP request is one trace there, its links lead on, and what is fetched is what the sidecars wrote."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Labs
from lab.cases import shipped
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from analyzers.model import UNKNOWN
from analyzers.readers.attributes import MAX_POSITIONS
from otel_cache.package import SCOPE
from otel_cache.semconv import names
from otel_cache.semconv.positions import parse_positions

from .engines import BOUNDARY, ENGINES_SECONDS, Fleet, complete, words
from .programs import Jaeger, Programs, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(ENGINES_SECONDS)]
CALLER = "chat"
FRONTEND = "frontend"
LLM_REQUEST = "llm_request"
"""vLLM's own span of a request."""
Json = dict[str, Any]


def spans(answer: Json) -> list[tuple[str, str, Json]]:
    """Return the spans of an answer of `/api/v3`, each with the names of its service and scope."""
    return [
        (attributes(resource["resource"]).get("service.name", ""), scope["scope"].get("name", ""), span)
        for resource in answer["result"]["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def attributes(owner: Json) -> Json:
    """Return attributes by name, arrays as lists of what they hold."""
    return {each["key"]: plain(each["value"]) for each in owner.get("attributes", ())}


def plain(value: Json) -> Any:
    """Return what an OTLP value holds."""
    ((kind, inner),) = value.items()
    return [plain(each) for each in inner.get("values", ())] if kind == "arrayValue" else inner


def trace_of(jaeger: Jaeger, trace_id: str) -> list[tuple[str, str, Json]]:
    """Return the spans that Jaeger has of a trace; none where it has no such trace."""
    answer = httpx.get(f"{jaeger.query}/api/v3/traces/{trace_id}", timeout=30)
    return spans(answer.json()) if answer.status_code == httpx.codes.OK else []


def otel_cache(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that works."""
    command = [sys.executable, "-c", "from analyzers.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done


def report(*paths: Path) -> Json:
    """Return the JSON report on captures."""
    return dict(json.loads(otel_cache("analyze", *paths, "--format", "json").stdout))


def without_coverage(found: Json) -> str:
    """Return a report as its text, coverage apart."""
    return json.dumps({key: value for key, value in found.items() if key != "coverage"})


@dataclass(frozen=True)
class Slow:
    """A request that repeats another and is slow all the same: its id, and the caller's ids."""

    request: str
    first: str
    trace: str
    caller: str
    spans: list[tuple[str, str, Json]]

    def named(self, name: str) -> list[Json]:
        """Return its spans of a name."""
        return [span for _, _, span in self.spans if span["name"] == name]


@pytest.fixture(scope="module")
def slow(fleet: Fleet) -> Slow:
    """One prompt twice to one engine, the second time below a caller's span that goes to the same collector."""
    engine = fleet.engines[0]
    provider = TracerProvider(resource=Resource.create({"service.name": FRONTEND}))
    exporter = OTLPSpanExporter(endpoint=f"http://{fleet.collector.grpc}", insecure=True)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    complete(fleet.engines[1].url, words(300))
    first, _ = complete(engine.url, words(400))
    with provider.get_tracer(FRONTEND).start_as_current_span(CALLER) as span:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        request, cached = complete(engine.url, words(400), headers)
    provider.shutdown()
    assert cached == 0, "an identical prompt was sent just before, and nothing of it was reused"
    trace = f"{span.get_span_context().trace_id:032x}"

    def whole() -> list[tuple[str, str, Json]]:
        found = trace_of(fleet.jaeger, trace)
        return found if {names.REQUEST, LLM_REQUEST, CALLER} <= {span["name"] for _, _, span in found} else []

    return Slow(request, first, trace, f"{span.get_span_context().span_id:016x}", wait_until(whole, "the trace", 60))


def test_one_request_is_one_trace(slow: Slow) -> None:
    """The caller's span, vLLM's, and ours with a lookup, its groups and what was stored."""
    (caller,), (theirs,), (ours,) = slow.named(CALLER), slow.named(LLM_REQUEST), slow.named(names.REQUEST)
    assert caller["spanId"] == slow.caller
    assert theirs["parentSpanId"] == ours["parentSpanId"] == slow.caller
    assert attributes(ours)[names.REQUEST_EXTERNAL_ID] == attributes(theirs)["gen_ai.request.id"]
    (lookup,) = slow.named(names.LOOKUP)
    groups = [attributes(span)[names.GROUP_IDS] for span in slow.named(names.GROUP_LOOKUP)]
    assert sorted(int(group) for one in groups for group in one) == [0, 1, 2, 3]
    assert {span["parentSpanId"] for span in slow.named(names.GROUP_LOOKUP)} == {lookup["spanId"]}
    assert {span["parentSpanId"] for span in [lookup, *slow.named(names.STORE)]} == {ours["spanId"]}
    assert slow.named(names.STORE)


def test_it_is_found(slow: Slow, fleet: Fleet) -> None:
    """By service, by operation, and by an attribute of the lookup: Jaeger's search by tags."""
    (lookup,) = slow.named(names.LOOKUP)
    limited_by = attributes(lookup)[names.LOOKUP_LIMITED_BY]
    assert limited_by == names.LIMITED_BY_GROUP_STATE
    query = {
        "service": "vllm",
        "operation": names.LOOKUP,
        "tags": json.dumps({names.LOOKUP_LIMITED_BY: limited_by, names.LOOKUP_HIT_TOKENS: "0"}),
        "limit": 1000,
    }
    found = httpx.get(f"{fleet.jaeger.query}/api/traces", params=query, timeout=30).json()["data"]
    assert slow.trace in [trace["traceID"] for trace in found]
    query["tags"] = json.dumps({names.LOOKUP_LIMITED_BY: "no such"})
    assert httpx.get(f"{fleet.jaeger.query}/api/traces", params=query, timeout=30).json()["data"] == []
    operations = httpx.get(f"{fleet.jaeger.query}/api/v3/operations", params={"service": "vllm"}, timeout=30).json()
    assert {each["name"] for each in operations["operations"]} >= {names.REQUEST, names.LOOKUP, names.STORE, names.STEP}


def test_a_link_leads_to_the_store_that_refused(slow: Slow, fleet: Fleet) -> None:
    """From the slow lookup to the step of the first request that left no Mamba state at the boundary."""
    (lookup,) = slow.named(names.LOOKUP)
    (link,) = [each for each in lookup["links"] if attributes(each)[names.LINK_REASON] == names.LINK_REFUSED]
    linked = trace_of(fleet.jaeger, link["traceId"])
    (store,) = [span for _, _, span in linked if span["spanId"] == link["spanId"]]
    assert store["name"] == names.STORE
    said = attributes(store)
    (request,) = [span for _, scope, span in linked if scope == SCOPE and span["name"] == names.REQUEST]
    # vLLM numbers the prompts of a request.
    assert attributes(request)[names.REQUEST_EXTERNAL_ID] == f"{slow.first}-0"
    for group, positions in zip(said[names.GROUP_IDS], said[names.STORE_NOT_MATERIALIZED], strict=True):
        missing = {position for run in parse_positions(positions) for position in run[:MAX_POSITIONS]}
        assert (BOUNDARY in missing) == (group in attributes(lookup)[names.LOOKUP_LIMITING_GROUPS])
    # Jaeger's page shows it as a reference: one click.
    shown = httpx.get(f"{fleet.jaeger.query}/api/traces/{slow.trace}", timeout=30).json()["data"][0]
    (of_lookup,) = [span for span in shown["spans"] if span["operationName"] == names.LOOKUP]
    references = [(each["refType"], each["traceID"], each["spanID"]) for each in of_lookup["references"]]
    assert ("FOLLOWS_FROM", link["traceId"], link["spanId"]) in references


def fetch(jaeger: Jaeger, out: Path, *options: str) -> Json:
    """Fetch all that a Jaeger has; return the report on it."""
    otel_cache("fetch", "jaeger", jaeger.query, "--out", out, *options)
    return report(out)


def same_causes(mine: Json, theirs: Json) -> None:
    """Check that two reports say the same of every token; times may differ by what microseconds leave out."""
    assert mine["tokens"] == theirs["tokens"]
    for one, other in zip(mine["lookups"], theirs["lookups"], strict=True):
        for key in ("request_id", "replica", "lost", "hit_tokens", "groups", "ladder", "limiting_groups"):
            assert one[key] == other[key], key


def test_what_is_fetched_is_what_the_sidecars_wrote(slow: Slow, fleet: Fleet, tmp_path: Path) -> None:
    """The same report to the byte, coverage apart, however many windows it takes; by the older API all but times."""
    fleet.settle()
    written = report(*fleet.evidence)
    spans_written = written["coverage"]["spans"]

    def arrived() -> Json | None:
        found = fetch(fleet.jaeger, tmp_path / "v3.jsonl", "--service", "vllm")
        return found if found["coverage"]["spans"] == spans_written else None

    fetched = wait_until(arrived, "all spans are in Jaeger", 60)
    assert without_coverage(fetched) == without_coverage(written)
    assert fetched["coverage"]["missing_records"] == 0
    small = fetch(fleet.jaeger, tmp_path / "small.jsonl", "--limit", "5")
    assert without_coverage(small) == without_coverage(written)
    older = fetch(fleet.jaeger, tmp_path / "older.jsonl", "--api", "json")
    assert older["coverage"]["spans"] == spans_written
    same_causes(older, written)


def test_a_service_that_is_not_there(fleet: Fleet, tmp_path: Path) -> None:
    """Those that are there are named."""
    command = [sys.executable, "-c", "from analyzers.cli import main; main()", "fetch", "jaeger", fleet.jaeger.query]
    options = ["--out", str(tmp_path / "got.jsonl"), "--service", "no-such"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Jaeger has no service no-such; it has " in done.stderr
    assert "vllm" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def exporting(session_programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Jaeger:
    """A Jaeger of its own, which the lab's sidecars export to; it holds less than `fetch` asks for at once."""
    jaeger = session_programs.jaeger(traces=100)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://{jaeger.grpc}")
    return jaeger


def test_large_blocks_thinned(lab: Labs, exporting: Jaeger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model case, exported as traces: the causes by Jaeger are those by the file, with less in between."""
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_EXPORT", "traces")
    lab["0.28.0"].run(shipped("model_case"), tmp_path / "spans.jsonl")
    written = report(tmp_path / "spans.jsonl")
    fetched = fetch(exporting, tmp_path / "got.jsonl")
    assert fetched["coverage"]["missing_records"] == 0
    for key in ("tokens", "lookups", "sequences", "funnel", "replicas"):
        assert json.dumps(fetched[key]) == json.dumps(written[key]), key
    assert [each["rule"] for each in fetched["findings"]] == [each["rule"] for each in written["findings"]]


def test_small_blocks_thinned(lab: Labs, exporting: Jaeger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16: Jaeger has fingerprints every 256 tokens alone, and what lies between is unknown, never wrong."""
    monkeypatch.setenv("OTEL_PYTHON_VLLM_CACHE_EXPORT", "traces")
    requests = [
        {"id": name, "prompt": [{"segment": segment, "tokens": 2000}, {"segment": name, "tokens": 300}]}
        for name, segment in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "two"), ("e", "one"))
    ]
    engine = {"groups": [{"kind": "full_attention"}], "block_size": 16, "num_gpu_blocks": 260}
    scenario = {"engine": engine, "requests": requests}
    lab["0.28.0"].run(scenario, tmp_path / "spans.jsonl")
    written, fetched = report(tmp_path / "spans.jsonl"), fetch(exporting, tmp_path / "got.jsonl")
    for mine, theirs in zip(fetched["lookups"], written["lookups"], strict=True):
        assert mine["hit_tokens"] == theirs["hit_tokens"]
        known = {cls: tokens for cls, tokens in mine["lost"].items() if cls != UNKNOWN}
        assert all(tokens <= theirs["lost"].get(cls, 0) for cls, tokens in known.items())
    assert UNKNOWN not in written["tokens"]["lost"]
    assert fetched["tokens"]["lost"][UNKNOWN] > 0


def test_a_storage_of_jaegers_own_model(
    lab: Labs, session_programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Badger keeps scalars and microseconds, as Cassandra does: arrays come back, and the causes with them."""
    jaeger = session_programs.jaeger(storage={"badger": {"ephemeral": True}})
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://{jaeger.grpc}")
    lab["0.28.0"].run(shipped("model_case"), tmp_path / "spans.jsonl")
    written = report(tmp_path / "spans.jsonl")
    for options in ([], ["--limit", "3"], ["--api", "json"]):
        fetched = fetch(jaeger, tmp_path / "got.jsonl", *options)
        assert fetched["coverage"]["spans"] == written["coverage"]["spans"]
        assert fetched["replicas"] == written["replicas"]
        same_causes(fetched, written)
