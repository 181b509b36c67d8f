"""Counters of vLLM's page /metrics."""

from analyzers.probe.metrics import Counters, Delta, moved, parse_counters

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 12000.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7959982473575175e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 5120.0
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 64.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 3.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="640",enable_prefix_caching="True",engine="0"} 1.0
"""


def test_a_page_of_vllm() -> None:
    """Engines and reasons are summed; times of creation are no counts."""
    counters = parse_counters(PAGE)
    assert counters is not None
    assert (counters.running, counters.waiting, counters.finished) == (3, 0, 4)
    assert (counters.queries, counters.local_hits, counters.external_hits) == (12000, 5120, 64)
    assert (counters.caching, counters.block_size) == (True, 640)
    assert counters.drafted is None


def test_other_pages() -> None:
    """Of another program, of none, and damaged."""
    assert parse_counters("") is None
    assert parse_counters("# TYPE up gauge\nup 1\n") is None
    assert parse_counters("<html>not found</html>") is None
    assert parse_counters('vllm:num_requests_running{engine="0" 1.0') is None
    assert parse_counters("vllm:num_requests_running NaN\n") is None


def test_caching_is_told_or_not() -> None:
    """vLLM's label, if it is there."""
    assert Counters(config={"enable_prefix_caching": "False"}).caching is False
    assert Counters(config={}).caching is None
    assert Counters(config={"block_size": "None"}).block_size is None


def test_moved() -> None:
    """What a KV connector brings counts as a hit; what is not counted stays unknown."""
    before = Counters(queries=10, local_hits=5, external_hits=1, finished=2)
    after = Counters(queries=30, local_hits=15, external_hits=4, finished=3, drafted=8)
    assert moved(before, after) == Delta(20, 13, None, None, 1, None, None)
