"""docs/scenarios.md against the model of a scenario."""

import msgspec
import pytest
import yaml

from analyzers.vllm_lab import scenario
from analyzers.vllm_lab.scenario import parse_scenario
from docs.markdown import ROOT, blocks, read, sections, table

TEXT = read("docs/scenarios.md")
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "Scenario": scenario.Scenario,
    "Engine": scenario.Engine,
    "Group": scenario.Group,
    "Speculative": scenario.Speculative,
    "Connector": scenario.Connector,
    "CPU offload": scenario.CpuOffload,
    "Request": scenario.LabRequest,
    "Part": scenario.Part,
    "Item": scenario.Item,
}


@pytest.mark.parametrize("name", STRUCTS)
def test_every_key(name: str) -> None:
    """Each key stands in its table with its default, in order, and no other."""
    expected = {}
    for field in msgspec.structs.fields(STRUCTS[name]):
        value = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            value = field.default_factory()
        shown = yaml.safe_dump(list(value) if isinstance(value, tuple) else value).split("\n")[0]
        expected[field.encode_name] = "required" if field.required else f"`{shown}`"
    found = {key: row[0] for key, row in table(sections(TEXT)[name]).items()}
    assert found == expected


def test_the_example_is_a_scenario() -> None:
    """What the page shows can be read."""
    block, *_ = blocks(TEXT, "yaml")
    assert parse_scenario(yaml.safe_load(block)).requests


def test_every_shipped_scenario_is_named() -> None:
    """What ships stands in the page, and nothing else does as if it shipped."""
    listed = [line for line in sections(TEXT)["Scenarios that come with otel-cache"].splitlines() if line[:3] == "- `"]
    shipped = {path.stem for path in (ROOT / "analyzers" / "vllm_lab" / "scenarios").glob("*.yaml")}
    assert {line.split("`")[1] for line in listed} == shipped
