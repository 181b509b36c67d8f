"""The registry of names: sound in itself, what is generated from it up to date, and broken ones refused."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_cache.semconv import names
from scripts.semconv import __main__ as generator
from scripts.semconv.registry import CONDITIONAL, FOLDER, ROOT, RegistryError, constants, load

REGISTRY = load()


def test_generated_files_are_up_to_date() -> None:
    """`make semconv` would change nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.semconv", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that somebody wrote by hand is not what the registry says."""
    edited = tmp_path / "names.py"
    edited.write_text(generator.constants.PATH.read_text() + 'MORE = "vllm.more"\n')
    monkeypatch.setattr(generator.constants, "PATH", edited)
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0


def test_constants_are_the_registrys() -> None:
    """No name stands in the module that the registry has not, and none is lost."""
    module = {name: value for name, value in vars(names).items() if name.isupper()}
    assert module == dict(constants(REGISTRY))


def test_names_and_units_agree() -> None:
    """Tokens are counted in tokens, durations are seconds, and an example is of its attribute's type."""
    for attribute in REGISTRY.attributes.values():
        last = attribute.id.rpartition(".")[2]
        if last.endswith("_tokens") and attribute.type.startswith("int"):
            assert attribute.unit == "{token}", attribute.id
        if last.endswith("_duration") or last.startswith("time_to_"):
            assert (attribute.type, attribute.unit) == ("double", "s"), attribute.id
        assert (attribute.level == CONDITIONAL) == bool(attribute.condition), attribute.id
        assert attribute.brief.endswith("."), f"{attribute.id}: the brief is no sentence"


def test_nothing_new_in_the_namespaces_of_others() -> None:
    """`gen_ai` is OpenTelemetry's: only its usage counts, and only on requests. Nothing is under `otel`."""
    for group in REGISTRY.groups:
        foreign = {each.id for each in group.attributes if each.id.startswith(("gen_ai.", "otel."))}
        assert foreign <= {names.USAGE_INPUT_TOKENS, names.USAGE_OUTPUT_TOKENS, names.USAGE_CACHE_READ_TOKENS}
        assert not foreign or group.name == names.REQUEST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("id: vllm.kv_cache.evict.age", "id: vllm.kv_cache.evict.blocks"), "evict.blocks is defined twice"),
        (("ref: vllm.kv_cache.group.ids", "ref: vllm.kv_cache.group.idz"), "no attribute vllm.kv_cache.group.idz"),
        (("type: boolean", "type: flag"), "evict.reset needs a brief, a type"),
        (("extends: common.evidence", "extends: common.proof"), "extends common.proof, which does not exist"),
        (("type: span", "type: trace"), "type 'trace' is none of span"),
        (("id: vllm.kv_cache.evict.age", "id: vllm.evict.blocks"), "are both EVICT_BLOCKS"),
        (("groups:", "group:"), "evict.yaml is not a list of `groups`"),
    ],
)
def test_a_broken_registry_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """The message names the place."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "evict.yaml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(RegistryError, match=re.escape(message)):
        load(tmp_path)


def test_metrics_have_their_place(tmp_path: Path) -> None:
    """A metric needs an instrument and a unit; its constant follows from its name."""
    path = tmp_path / "metrics.yaml"
    text = """groups:
  - id: metric.otel_cache.export.spans
    type: metric
    metric_name: otel_cache.export.spans
    brief: Spans that the back end took.
    instrument: counter
    unit: "{span}"
    stability: development
    attributes: []
"""
    path.write_text(text)
    assert dict(constants(load(tmp_path))) == {"EXPORT_SPANS": "otel_cache.export.spans"}
    path.write_text(text.replace("counter", "clock"))
    with pytest.raises(RegistryError, match="needs metric_name, unit, and an instrument"):
        load(tmp_path)
