"""vLLM's counters of its prefix cache against the lookups: of the real scheduler, and by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Labs
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.cases import request, scenario
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from vllm_versions import VERSIONS

from analysis.test_evidence import EXAMPLE
from analyzers.analysis import analyze
from analyzers.model import Analysis
from analyzers.readers import open_capture
from analyzers.reporters import text
from analyzers.reporters.json import to_object
from tests.readers import otlp
from tests.readers.forms import prefixed, protobuf

SECOND = 1_000_000_000
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
SENT, HIT = 4 * 11910, 2 * 9600
"""Of the example: four prompts, the last two of which hit."""
Points = Sequence[tuple[int, float]]


def metrics(points: Mapping[str, Points], temporality: int = 2, **attributes: Any) -> bytes:
    """Return a line of the collector's file exporter: counters by name, as (ns, value); attributes of the points."""
    made = [
        {
            "name": name,
            "sum": {
                "aggregationTemporality": temporality,
                "isMonotonic": True,
                "dataPoints": [
                    {"timeUnixNano": str(time), "asDouble": value, "attributes": otlp.attributes(attributes)}
                    for time, value in own
                ],
            },
        }
        for name, own in points.items()
    ]
    line = {"resourceMetrics": [{"resource": {"attributes": []}, "scopeMetrics": [{"metrics": made}]}]}
    return json.dumps(line).encode() + b"\n"


def around(capture: Path) -> tuple[int, int]:
    """Return times 5 s before and after all evidence of a capture, ns."""
    coverage = analyze(open_capture([capture])).coverage
    return coverage.begin - 5 * SECOND, coverage.end + 5 * SECOND


BEGIN, END = around(EXAMPLE)


def with_metrics(folder: Path, *lines: bytes, capture: Path = EXAMPLE) -> Analysis:
    """Analyze a capture with metrics beside its spans, in one file, the metrics first and last."""
    path = folder / "both.jsonl"
    path.write_bytes(lines[0] + capture.read_bytes() + b"".join(lines[1:]))
    return analyze(open_capture([path]))


def protobuf_metrics(line: bytes) -> bytes:
    """Return the message that a line of metrics stands for."""
    return json_format.Parse(line, MetricsData()).SerializeToString()


def reporting(analysis: Analysis) -> list[str]:
    """Return what the findings on figures that disagree say."""
    return [finding.summary for finding in analysis.findings if finding.rule == "reporting"]


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_scheduler_s_own_counters_agree(lab: Labs, tmp_path: Path, version: str) -> None:
    """Refused admissions, and one that is preempted and looked up again: a counter takes each request once.

    vLLM 0.26 takes each lookup, refused ones again and again.
    """
    requests = [
        request("first", ("a", 700), output_tokens=100),
        request("second", ("b", 700), output_tokens=100, **{"with": "first"}),
        request("third", ("a", 700), ("c", 400), **{"with": "first"}),
        request("again", ("a", 700)),
    ]
    capture = tmp_path / "s.jsonl"
    said = lab[version].run(scenario(requests, num_gpu_blocks=97), capture)
    assert sum(each.preemptions for each in said.requests) > 0
    begin, end = around(capture)
    (replica,) = said.replicas
    line = metrics({QUERIES: [(begin, 0), (end, replica.queries)], HITS: [(begin, 0), (end, replica.hits)]})
    analysis = with_metrics(tmp_path, line, capture=capture)
    hits, queries = analysis.counters
    assert (queries.said, hits.said) == (replica.queries, replica.hits)
    assert queries.most == queries.least == sum(each.prompt_tokens for each in said.requests)
    assert hits.most == sum(each.local_tokens for each in said.requests)
    if version.startswith("0.26."):
        assert queries.with_refused and not queries.agrees
        assert {finding.severity for finding in analysis.findings if finding.rule == "reporting"} == {"info"}
    else:
        assert queries.agrees and hits.agrees
        assert not reporting(analysis)


@pytest.mark.parametrize("names", [(QUERIES, HITS), ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
                                   ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits")])  # fmt: skip
def test_counters_that_agree_are_no_finding(tmp_path: Path, names: tuple[str, str]) -> None:
    line = metrics({names[0]: [(BEGIN, 70.0), (END, 70.0 + SENT)], names[1]: [(BEGIN, 9.0), (END, 9.0 + HIT)]})
    analysis = with_metrics(tmp_path, line)
    assert [(check.source, check.said) for check in analysis.counters] == [(names[1], HIT), (names[0], SENT)]
    assert all(check.agrees and list(check.replicas) == ["replica-0"] for check in analysis.counters)
    assert not reporting(analysis)


def test_a_counter_that_disagrees_is_one(tmp_path: Path) -> None:
    analysis = with_metrics(tmp_path, metrics({HITS: [(BEGIN, 0), (END, HIT + 1)]}))
    assert reporting(analysis) == [f"{HITS} counts 19,201 tokens hit on replica-0, the lookups 19,200"]
    assert "counts 19,201 tokens hit on replica-0" in " ".join(text.render(analysis).split())
    (check,) = to_object(analysis)["counters"]
    assert check == {
        "source": HITS, "what": "hits", "replicas": ["replica-0"], "begin": BEGIN, "end": END,
        "said": 19201, "least": 19200, "most": 19200, "agrees": False, "with_refused": False,
    }  # fmt: skip


def test_a_counter_that_falls_began_anew(tmp_path: Path) -> None:
    """A restart long before the evidence: 100 up to it, then 30, then what the lookups say."""
    early = BEGIN - 100 * SECOND
    points = [(early, 500.0), (early + SECOND, 600.0), (early + 2 * SECOND, 30.0), (END, 30.0 + SENT)]
    analysis = with_metrics(tmp_path, metrics({QUERIES: points}))
    (check,) = analysis.counters
    assert (check.said, check.least, check.most) == (100 + 30 + SENT, SENT, SENT)
    # What a restart in the middle of the lookups took along is not known: all of them may be missing, or none.
    middle = (BEGIN + END) // 2
    points = [(BEGIN, 500.0), (middle - SECOND, 600.0), (middle + SECOND, 0.0), (END, 7.0)]
    (check,) = with_metrics(tmp_path, metrics({QUERIES: points})).counters
    assert (check.said, check.least, check.most, check.agrees) == (107, 0, SENT, True)


def test_steps_of_a_delta_counter_are_added_up(tmp_path: Path) -> None:
    points = [(BEGIN, 99.0), (BEGIN + SECOND, 10.0), (END, SENT - 10.0)]
    (check,) = with_metrics(tmp_path, metrics({QUERIES: points}, temporality=1)).counters
    assert (check.said, check.agrees) == (SENT, True)


def test_lookups_beyond_the_points_do_not_count(tmp_path: Path) -> None:
    """Points that end before the lookups, by more than a step takes: nothing was counted, and nothing had to be."""
    (check,) = with_metrics(tmp_path, metrics({QUERIES: [(BEGIN - 9 * SECOND, 5), (BEGIN, 5)]})).counters
    assert (check.said, check.least, check.most) == (0, 0, 0)
    # Points so near to the lookups that they may have them or not.
    near = [(BEGIN + 4 * SECOND, 5), (END - 4 * SECOND, 5 + 11910)]
    (check,) = with_metrics(tmp_path, metrics({QUERIES: near})).counters
    assert (check.least, check.most, check.agrees) == (0, SENT, True)


def two_replicas(folder: Path) -> Path:
    """Write the example twice, the second time as replica-1, an engine of its own in the same process."""
    first = EXAMPLE.read_text()
    second = first.replace('"replica-0"', '"replica-1"')
    resources = [json.loads(line) for line in second.splitlines()]
    for line in resources:
        for owner in line["resourceSpans"]:
            attributes = owner["resource"]["attributes"]
            for each in attributes:
                if each["key"] == "service.instance.id":
                    each["value"]["stringValue"] += "-1"
                if each["key"] == "vllm.data_parallel_index":
                    each["value"] = {"intValue": "1"}
            for scope in owner["scopeSpans"]:
                for span in scope["spans"]:
                    for key in ("spanId", "parentSpanId"):
                        if span.get(key):
                            span[key] = f"{int(span[key], 16) ^ 0xFF:016x}"
    path = folder / "two.jsonl"
    path.write_text(first + "".join(json.dumps(line) + "\n" for line in resources))
    return path


def test_a_counter_is_told_by_its_replica_or_host_and_engine(tmp_path: Path) -> None:
    """By the id; by host and engine; and where nothing tells them apart two counters are added up."""
    capture = two_replicas(tmp_path)
    right, wrong = [(BEGIN, 0), (END, SENT)], [(BEGIN, 0), (END, SENT + 5)]

    def replicas(*lines: bytes) -> list[tuple[list[str], bool]]:
        analysis = with_metrics(tmp_path, *lines, capture=capture)
        return [(list(check.replicas), check.agrees) for check in analysis.counters]

    assert replicas(
        metrics({QUERIES: right}, **{"vllm.replica.id": "replica-0"}),
        metrics({QUERIES: wrong}, **{"vllm.replica.id": "replica-1"}),
    ) == [(["replica-0"], True), (["replica-1"], False)]
    named = {"server.address": "replica-1", "engine": "1"}
    assert replicas(metrics({QUERIES: wrong}, engine="0"), metrics({QUERIES: right}, **named)) == [
        (["replica-0"], False),
        (["replica-1"], True),
    ]
    both = metrics({QUERIES: right}, engine="0"), metrics({QUERIES: wrong}, engine="1")
    assert replicas(*both) == [(["replica-0", "replica-1"], False)]
    # One counter for two replicas is nobody's.
    assert replicas(metrics({QUERIES: right}, engine="0")) == []


@settings(max_examples=25, deadline=None)
@given(at=st.integers(0, 400), junk=st.binary(min_size=1, max_size=3))
def test_damaged_metrics_cost_nothing_else(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    line = bytearray(metrics({QUERIES: [(BEGIN, 0), (END, SENT)]}, engine="0")[:-1])
    at = min(at, len(line) - len(junk))
    line[at : at + len(junk)] = junk.replace(b"\n", b"?")
    analysis = with_metrics(tmp_path_factory.mktemp("damaged"), bytes(line) + b"\n")
    assert analysis.lost == {"cold": 11910, "tail": 2130, "speculative_drop": 4800, "shifted_boundary": 9600}


@pytest.mark.parametrize("temporality", [1, 2])
def test_counters_in_protobuf_are_those_in_json(tmp_path: Path, temporality: int) -> None:
    """A file exporter that writes spans and metrics to one file: messages of both, each behind its length."""
    lines = EXAMPLE.read_bytes().splitlines()
    counts = {QUERIES: [(BEGIN, 0), (END, SENT + 5000)], HITS: [(BEGIN, 0), (END, HIT)]}
    counters = metrics(counts, temporality, pod="p-0")
    others = metrics({"vllm:num_requests_running": [(BEGIN, 3)]}, engine="0")
    (tmp_path / "json").mkdir()
    in_json = with_metrics(tmp_path / "json", counters)
    path = tmp_path / "messages"
    path.write_bytes(prefixed([protobuf_metrics(counters), *map(protobuf, lines), protobuf_metrics(others)]))
    capture = open_capture([path])
    assert reporting(analyze(capture)) == reporting(in_json) != []
    assert capture.counters.equals(open_capture([tmp_path / "json" / "both.jsonl"]).counters)
