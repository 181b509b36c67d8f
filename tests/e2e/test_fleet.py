"""Two real engines behind the real router, over HTTP, through sidecars and one collector into Jaeger and a capture.

Each replica pays for its own cold prompt and its own first repeat: what a router spreads is missed once on each.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from analyzers.model import HELD_ELSEWHERE

from .engines import BOUNDARY, ENGINES_SECONDS, PROMPT_TOKENS, Fleet, Router, complete, words
from .programs import Programs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(ENGINES_SECONDS)]
SENDS = 8


@dataclass(frozen=True)
class Sent:
    """Prompts that went through a router: when the first went, and each one's id and cached tokens."""

    begin: str
    sends: list[tuple[str, int]]

    @property
    def cached(self) -> list[int]:
        """What vLLM says of each send."""
        return [tokens for _, tokens in self.sends]


def send(programs: Programs, backends: Mapping[str, Path], fleet: Fleet, policy: str, prompt: str) -> Sent:
    """Send one prompt eight times, one after the other, through a router with this policy."""
    workers = [engine.url for engine in fleet.engines]
    router = programs.keep(Router(backends["router"], fleet.folder / policy, policy, workers))
    begin = datetime.now(UTC).isoformat()
    sends = [complete(router.url, prompt) for _ in range(SENDS)]
    router.kill()
    fleet.settle()
    return Sent(begin, sends)


def report(sent: Sent, until: str, *paths: Path) -> dict[str, Any]:
    """Return the JSON report on the sends of a time, from captures."""
    command = [sys.executable, "-c", "from analyzers.cli import main; main()", "analyze", *map(str, paths)]
    options = ["--format", "json", "--since", sent.begin, "--until", until]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def spread(session_programs: Programs, backends: Mapping[str, Path], fleet: Fleet) -> Sent:
    """Eight sends of one prompt, round robin."""
    return send(session_programs, backends, fleet, "round_robin", words(3))


@pytest.fixture(scope="module")
def sticky(session_programs: Programs, backends: Mapping[str, Path], fleet: Fleet, spread: Sent) -> Sent:
    """Eight sends of another, to the replica that the router knows to have its prefix."""
    return send(session_programs, backends, fleet, "cache_aware", words(200))


def test_round_robin_misses_once_more_on_each_replica(spread: Sent, sticky: Sent, fleet: Fleet) -> None:
    """Two cold prompts, two first repeats without a state at the boundary, then hits: by vLLM's own count."""
    assert spread.cached == [0, 0, 0, 0, BOUNDARY, BOUNDARY, BOUNDARY, BOUNDARY]
    found = report(spread, sticky.begin, *fleet.evidence)
    lookups = found["lookups"]
    assert [lookup["hit_tokens"] for lookup in lookups] == spread.cached
    assert [lookup["predicted_hit_tokens"] for lookup in lookups] == spread.cached
    assert [lookup["replica"] for lookup in lookups[:4]] == [lookup["replica"] for lookup in lookups[4:]]
    assert len({lookup["replica"] for lookup in lookups[:2]}) == 2
    lost = [lookup["lost"] for lookup in lookups]
    # The second send is the router's loss, the third and fourth are the boundary's.
    assert lost[0] == {"cold": PROMPT_TOKENS}
    assert lost[1][HELD_ELSEWHERE] == BOUNDARY
    assert [HELD_ELSEWHERE in each for each in lost] == [index == 1 for index in range(SENDS)]
    assert [each.get("not_materialized", 0) for each in lost[2:4]] == [BOUNDARY, BOUNDARY]
    patterns = {tuple(sorted(set(each["replicas"]))): each["pattern"] for each in found["sequences"]}
    pair = tuple(engine.replica for engine in fleet.engines)
    assert patterns == {pair: "once per replica", pair[:1]: "miss-miss-hit", pair[1:]: "miss-miss-hit"}


def test_sticky_routing_pays_once(sticky: Sent, fleet: Fleet) -> None:
    """One replica, one cold prompt, one repeat that misses; nothing is held elsewhere."""
    assert sticky.cached == [0, 0, *[BOUNDARY] * (SENDS - 2)]
    found = report(sticky, datetime.now(UTC).isoformat(), *fleet.evidence)
    assert len({lookup["replica"] for lookup in found["lookups"]}) == 1
    assert not [lookup for lookup in found["lookups"] if HELD_ELSEWHERE in lookup["lost"]]


def test_the_collectors_capture_says_the_same(spread: Sent, sticky: Sent, fleet: Fleet) -> None:
    """What the collector wrote of both replicas is what the sidecars wrote, coverage apart."""
    whole = [report(spread, sticky.begin, *paths) for paths in (fleet.evidence, [fleet.capture])]
    for each in whole:
        del each["coverage"]
    assert json.dumps(whole[0]) == json.dumps(whole[1])
