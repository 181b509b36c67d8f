"""The JSON report against its description, and comparisons of answers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from docs.markdown import read, rows, sections

from analyzers.probe import session
from analyzers.probe.compare import between, within
from analyzers.probe.json import to_object
from analyzers.probe.model import CONTROL, PROBED
from analyzers.probe.run import Request, probe
from analyzers.readers.own_reports import report_of

from .observations import observation
from .small_server import Small, SmallServer

OPAQUE = ("cache_config", "settings", "findings", "lookup")
"""What is described elsewhere."""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The report on two servers whose answers differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "QUIET_SECONDS", 0.01)
        with SmallServer(Small(speculation=True)) as one, SmallServer(Small(forgets=True)) as other:
            request = Request({PROBED: one.url, CONTROL: other.url}, prompt_tokens=100, block_size=16, repeats=2)
            return to_object(probe(request, lambda says: None))


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every key, as docs/probe.md writes it."""
    if isinstance(value, dict):
        for key, each in value.items():
            here = f"{path}.{key}" if path else key
            yield here
            if key not in OPAQUE:
                yield from keys(each, here)
    elif isinstance(value, list):
        for each in value:
            yield from keys(each, f"{path}[]")


def test_every_key_is_described(report: dict[str, Any]) -> None:
    """docs/probe.md has each key of the report, and no other. What has another's keys says so."""
    described = {row[0].strip("`"): row for row in rows(sections(read("docs/probe.md"))["The JSON report"])}
    found = set(keys(report))
    same = ("verdict.", "servers[].verdict.", "servers[].outputs_against_probed.")
    assert {key for key in found if not key.startswith(same)} == set(described)
    shape = {key.rpartition(".")[2] for key in found if key.startswith("servers[].shapes[].")}
    outputs = {key.removeprefix("servers[].outputs.") for key in found if key.startswith("servers[].outputs.")}
    assert {key.removeprefix("verdict.") for key in found if key.startswith("verdict.")} == shape
    against = {key.removeprefix(same[2]) for key in found if key.startswith(same[2])}
    assert against == outputs


def test_it_is_known_for_no_capture(report: dict[str, Any]) -> None:
    assert report_of(json.dumps(report, indent=2).encode()) == "probe"


def test_every_verdict_is_described() -> None:
    """docs/probe.md has each verdict, and no other."""
    from analyzers.probe.model import GRAVITY

    described = [re.sub("`", "", row[0]) for row in rows(sections(read("docs/probe.md"))["Verdicts"])]
    assert sorted(described) == sorted(GRAVITY)


def test_answers_on_one_server() -> None:
    """Each is compared with the first to the same prompt; where they part is the first token that differs."""
    sends = [
        observation(0, output=(1, 2, 3), prompt=1),
        observation(1, output=(1, 2, 3), prompt=1),
        observation(0, output=(9, 9, 9), prompt=2),
        observation(2, output=(1, 2, 4), prompt=1),
        observation(3, output=(1, 2), prompt=1),
    ]
    found = within(sends)
    assert (found.compared, found.by, found.equal) == (3, "tokens", False)
    assert [(pair["sends"], pair["at"]) for pair in found.differing] == [([0, 2], 2), ([0, 3], 2)]


def test_answers_of_two_servers() -> None:
    """Send by send; by text where one of them gives no token ids."""
    ours = [observation(0, output=(1,), text=" w1"), observation(1, output=(1,), text=" w1")]
    theirs = [observation(0, output=None, text=" w1"), observation(1, output=None, text=" w2")]
    found = between(ours, theirs)
    assert (found.compared, found.by) == (2, "text")
    assert [pair["at"] for pair in found.differing] == [2]
    assert between(ours, ours).equal
