"""Which requests an id names: vLLM's own, the API's, and the API's of several prompts."""

from dataclasses import replace
from importlib.resources import files

import polars as pl
import pytest

from analyzers.readers import open_capture
from analyzers.story import stories
from otel_cache.errors import UsageError

EXAMPLE = str(files("analyzers") / "examples" / "model_case.jsonl")
GIVEN_OUT = {"cold": "cmpl-10-0", "repeat-0": "cmpl-1-0", "repeat-1": "cmpl-1-1", "repeat-2": "chatcmpl-1"}
"""Of a completion vLLM numbers the prompts behind the API's id; of a chat it does not."""


def found(request: str) -> set[str]:
    """Return the ids of the requests that `request` names."""
    capture = open_capture([EXAMPLE])
    numbered = capture.requests.with_columns(external_id=pl.col("request_id").replace_strict(GIVEN_OUT, default=None))
    return {story.result.request_id for story in stories(replace(capture, requests=numbered), request)}


@pytest.mark.parametrize(
    ("request_id", "named"),
    [
        ("repeat-0", {"repeat-0"}),
        ("cmpl-1-0", {"repeat-0"}),
        ("cmpl-1", {"repeat-0", "repeat-1"}),
        ("cmpl-10", {"cold"}),
        ("chatcmpl-1", {"repeat-2"}),
    ],
)
def test_an_id_names(request_id: str, named: set[str]) -> None:
    assert found(request_id) == named


@pytest.mark.parametrize("request_id", ["cmpl", "cmpl-", "cmpl-1-", "chatcmpl-1-0", "cmpl-1.0"])
def test_an_id_names_none(request_id: str) -> None:
    with pytest.raises(UsageError, match="no lookup of a request with this id; there are "):
        found(request_id)
