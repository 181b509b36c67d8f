"""Scenarios that several tests run, as plain dictionaries."""

from pathlib import Path
from typing import Any

import yaml

from analyzers.vllm_lab.scenario import find_scenario

MTP = {"method": "mtp", "num_speculative_tokens": 2}
FULL = [{"kind": "full_attention"}]
HYBRID = [{"kind": "mamba", "layers": 3}, {"kind": "full_attention"}]
EXTERNAL = {
    "class": "ExternalConnector",
    "module_path": "external",
    "folder": str(Path(__file__).parents[1] / "signals"),
}
"""The tests' own KV connector."""


def shipped(name: str, **engine: Any) -> dict[str, Any]:
    """Return a scenario that ships, with these settings of the engine changed."""
    data: dict[str, Any] = yaml.safe_load(find_scenario(Path(name)).read_text())
    data["engine"].update(engine)
    return data


def documented() -> dict[str, Any]:
    """Return the scenario that docs/scenarios.md shows."""
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    data: dict[str, Any] = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    return data


def request(name: str, *parts: tuple[str, int], **keys: Any) -> dict[str, Any]:
    """Return a request whose prompt has these (segment, tokens)."""
    return {"id": name, "prompt": [{"segment": segment, "tokens": tokens} for segment, tokens in parts], **keys}


def scenario(requests: list[dict[str, Any]], groups: Any = FULL, replicas: int = 1, **engine: Any) -> dict[str, Any]:
    """Return a scenario with these requests."""
    return {"engine": {"groups": groups, **engine}, "replicas": replicas, "requests": requests}


def resent(tokens: int, times: int = 2) -> list[dict[str, Any]]:
    """Return one prompt, sent once and then `times` times again."""
    return [request("cold", ("doc", tokens)), request("repeat", ("doc", tokens), times=times)]
