"""The collector's configurations: what they use is built, what they read is documented, what they count has a name.

That they run is tested with the real collector: `make e2e`.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.semconv import connector
from scripts.semconv.registry import load

FOLDER = Path(__file__).parents[2] / "collector"
CONFIGS = ("dev", "agent", "gateway", "record")
VARIABLE = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")
ROW = re.compile(r"^\| `(OTEL_CACHE_COLLECTOR_\w+)` \| (.+?) \| (.+?) \|")
KINDS = ("receivers", "processors", "exporters", "extensions", "connectors")


def read(name: str) -> dict[str, Any]:
    """Return a configuration; variables stay as they are written."""
    return dict(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))


def used(name: str) -> dict[str, str]:
    """Return the variables of a configuration with their defaults."""
    return dict(VARIABLE.findall((FOLDER / f"{name}.yaml").read_text()))


def documented() -> dict[str, tuple[str, str]]:
    """Return what the page says of each variable: its default, and which configurations read it."""
    lines = (FOLDER / "README.md").read_text().splitlines()
    return {row[1]: (row[2], row[3]) for line in lines if (row := ROW.match(line))}


@pytest.mark.parametrize("name", CONFIGS)
def test_all_that_is_used_is_built(name: str) -> None:
    """Each component of a configuration has its module in the builder's manifest, and is in a pipeline or enabled."""
    manifest, config = yaml.safe_load((FOLDER / "builder.yaml").read_text()), read(name)
    built = {kind: " ".join(each["gomod"] for each in manifest.get(kind, ())) for kind in KINDS}
    modules = {
        "otlp_grpc": "otlpexporter",
        "health_check": "healthcheckextension",
        "bearertokenauth": "bearertokenauthextension",
        "file_storage": "filestorage",
    }
    service = config["service"]
    in_use = set(service["extensions"])
    for pipeline in service["pipelines"].values():
        in_use |= {component for part in pipeline.values() for component in part}
    for kind in KINDS:
        for component in config.get(kind, {}):
            kind_of = component.split("/")[0]
            module = modules.get(kind_of, kind_of.replace("_", "") + kind[:-1])
            assert f"/{module} v" in built[kind], f"{component} is not in builder.yaml"
            assert component in in_use, f"{component} is in no pipeline"


def test_the_collector_is_of_one_release() -> None:
    """Components of different releases do not fit together."""
    manifest = yaml.safe_load((FOLDER / "builder.yaml").read_text())
    versions = {each["gomod"].rpartition(" v")[2] for kind in KINDS for each in manifest[kind]}
    assert versions == {manifest["dist"]["version"]}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_variable_has_a_default_and_is_documented(name: str) -> None:
    """What a configuration reads is in the table of its page, as are its default and its name."""
    rows = documented()
    for variable, default in used(name).items():
        assert variable in rows, f"{variable} is not documented"
        says, of = rows[variable]
        assert of == "all" or name in of.split(", "), f"{variable} is read by {name}.yaml too"
        own = [part for part in says.split(", ") if part.startswith(f"{name} `")]
        shown = own or [says.split(", ")[0]]
        assert f"`{default}`" in shown[0] or (not default and "`" not in shown[0]), f"{variable} of {name}: {says}"


def test_nothing_is_documented_that_is_gone() -> None:
    """Each row of the table is read by the configurations that it names."""
    for variable, (_, of) in documented().items():
        for name in CONFIGS if of == "all" else of.split(", "):
            assert variable in used(name), f"{name}.yaml does not read {variable}"


def test_each_configuration_has_its_row() -> None:
    """And there is no configuration besides."""
    page = (FOLDER / "README.md").read_text()
    files = {path.stem for path in FOLDER.glob("*.yaml")} - {"builder", "metrics", "kustomization"}
    assert files == set(CONFIGS)
    assert all(f"| `{name}.yaml` |" in page for name in CONFIGS)


def test_jaeger_listens_where_dev_sends() -> None:
    """The command that starts Jaeger publishes its OTLP port where `dev.yaml` looks for it, in Compose's version."""
    (jaeger,) = re.findall(r"^docker run .+$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    port = used("dev")["OTEL_CACHE_COLLECTOR_BACKEND"].rpartition(":")[2]
    assert f":{port}:4317 " in jaeger
    compose = (FOLDER.parent / "deploy" / "compose" / "compose.yaml").read_text()
    assert f"image: {jaeger.split()[-1]}\n" in compose


def test_the_page_names_what_the_builder_makes() -> None:
    """Where `builder.yaml` puts its program, and of which release it is."""
    dist = yaml.safe_load((FOLDER / "builder.yaml").read_text())["dist"]
    page = (FOLDER / "README.md").read_text()
    assert f"`{dist['output_path']}/{dist['name']}`" in page
    assert f"builder@v{dist['version']} " in page


def test_metrics_are_those_of_the_registry() -> None:
    """The same metrics, instruments and labels, and the names that Prometheus gives them."""
    groups = {group.name: group for group in load().groups if group.kind == "metric"}
    made = yaml.safe_load(connector.METRICS.read_text())["metrics"]
    assert made.keys() == groups.keys()
    for name, how in made.items():
        group = groups[name]
        instrument = {"duration": "histogram", "delay": "histogram", "last": "gauge"}
        assert next((instrument[key] for key in instrument if key in how), "counter") == group.instrument, name
        assert list(how.get("labels", {})) == [attribute.id for attribute in group.attributes], name
        exported = name.replace(".", "_") + ("_seconds" if group.unit == "s" else "")
        assert how["prometheus"] == exported + ("_total" if group.instrument == "counter" else ""), name


def test_metrics_are_made_of_what_spans_say() -> None:
    """Each span of a metric exists, and has what the metric is made of; one that counts from 0 has others beside it."""
    registry = load()
    for name, how in yaml.safe_load(connector.METRICS.read_text())["metrics"].items():
        says = {*how.get("where", {}), *how.get("add", ()), *how.get("subtract", ()), *how.get("by", {}).values()}
        says |= {how["last"]} if "last" in how else set()
        says |= set() if "by" in how else {*how.get("labels", {})}
        of = {span: {attribute.id for attribute in registry.spans[span].attributes} for span in how["spans"]}
        wrong = [span for span, known in of.items() if not says <= known]
        assert not wrong or (how.get("from_zero") and len(wrong) < len(of)), f"{name}: {wrong} have no {says}"


def test_no_label_has_an_id() -> None:
    """Ids of requests, traces, processes and lives are on no metric; a replica's is its name, which stays."""
    made = yaml.safe_load(connector.METRICS.read_text())
    labels = {*made["resource"], *(label for how in made["metrics"].values() for label in how.get("labels", {}))}
    assert {label for label in labels if "id" in label.split(".")} == {"vllm.replica.id"}
    assert not labels & {"service.instance.id", "process.pid"}


def test_group_hits_are_never_summed() -> None:
    """What a group had says nothing of the hit: no metric adds up what group lookups say, but for our own losses."""
    for name, how in yaml.safe_load(connector.METRICS.read_text())["metrics"].items():
        if "vllm.kv_cache.group.lookup" in how["spans"]:
            assert all(attribute.startswith("otel_cache.") for attribute in how["add"]), name
