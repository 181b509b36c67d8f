"""What deploy/ holds, taken by promtool, kustomize, Compose's loader, the collector and uv."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deploy.manifests import COMPOSE, CONFIGS, DEPLOY, KUBERNETES, ROOT, documents, load
from docs.examples import lines
from docs.markdown import blocks

from scripts.backends import downloads

PROMETHEUS = DEPLOY / "prometheus"
RULES = "otel-cache.rules.yaml"
CUSTOM = {"PodMonitor", "PrometheusRule"}


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, **options)


def test_promtool_accepts_configuration_and_rules(backends: Mapping[str, Path], tmp_path: Path) -> None:
    """Prometheus would start with them."""
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    shutil.copy(COMPOSE / "replicas-2.yaml", tmp_path / "replicas.yaml")
    path = tmp_path / "prometheus.yml"
    path.write_text(path.read_text().replace("/etc/prometheus/", f"{tmp_path}/"))
    done = run(backends["promtool"], "check", "config", path)
    assert done.returncode == 0, done.stderr
    assert "SUCCESS" in done.stdout and "WARNING" not in done.stdout


def test_unit_tests_of_the_alerts(backends: Mapping[str, Path]) -> None:
    """Each alert fires in its tests, and not before."""
    done = run(backends["promtool"], "test", "rules", PROMETHEUS / "otel-cache.rules.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def never(alert: dict[str, Any]) -> None:
    """Let an alert never fire."""
    alert["expr"] = f"({alert['expr']}) and vector(1) == 2"


def at_once(alert: dict[str, Any]) -> None:
    """Let an alert not wait."""
    alert["for"] = "0m"


@pytest.mark.parametrize("spoil", [never, at_once])
def test_unit_tests_would_notice(
    backends: Mapping[str, Path], tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    """Each alert that never fires fails its tests, and so does each that should wait and does not."""
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    rules = load(tmp_path / RULES)
    spoilt = set()
    for alert in [each for group in rules["groups"] for each in group["rules"] if "alert" in each]:
        before = dict(alert)
        spoil(alert)
        if alert != before:
            spoilt.add(alert["alert"])
    (tmp_path / RULES).write_text(json.dumps(rules))
    done = run(backends["promtool"], "test", "rules", tmp_path / "otel-cache.rules.test.yaml")
    assert done.returncode != 0
    assert set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr)) == spoilt


@pytest.mark.parametrize("folder", ["base", "overlays/fleet", "overlays/example"])
def test_kustomize(backends: Mapping[str, Path], folder: str) -> None:
    """It builds, Kubernetes knows every field of it, and what it mounts and reads is in it or is named as a secret."""
    done = run(backends["kustomize"], "build", KUBERNETES / folder)
    assert done.returncode == 0, done.stderr
    built = documents(done.stdout)
    # A cluster without Prometheus' operator refuses these; only the example asks for them.
    assert bool({each["kind"] for each in built} & CUSTOM) == (folder == "overlays/example")
    for resource in built:
        if resource["kind"] not in CUSTOM:
            kubernetes_validate.validate(resource, "1.33", strict=True)
        assert resource["kind"] == "Namespace" or resource["metadata"]["namespace"] == "otel-cache"
    maps = {each["metadata"]["name"] for each in built if each["kind"] == "ConfigMap"}
    text = done.stdout
    mounted = set(re.findall(r"configMap(?:KeyRef:\n.+|:)\n +name: (\S+)", text))
    assert mounted and mounted <= maps
    secrets = set(re.findall(r"secretName: (\S+)", text)) | set(re.findall(r"secretKeyRef:\n.+\n +name: (\S+)", text))
    operations = (ROOT / "docs" / "operations.md").read_text()
    assert secrets and all(f"secret generic {name} " in operations or name == "huggingface" for name in secrets)
    images = set(re.findall(r"image: (\S+)", text))
    assert images and all(re.search(r":\d", image) for image in images)


@pytest.mark.parametrize(("overlay", "count"), [("fleet", 2), ("example", 3)])
def test_replicas(backends: Mapping[str, Path], overlay: str, count: int) -> None:
    """The overlay makes several of the one replica, and the router knows all by the names that they get."""
    built = documents(run(backends["kustomize"], "build", KUBERNETES / "overlays" / overlay).stdout)
    (vllm,) = [each for each in built if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "vllm"]
    (router,) = [each for each in built if each["kind"] == "Deployment"]
    urls = [word for word in router["spec"]["template"]["spec"]["containers"][0]["args"] if word.startswith("http")]
    assert vllm["spec"]["replicas"] == count
    assert urls == [f"http://vllm-{number}.vllm:8000" for number in range(count)]


def test_the_example_changes_what_is_somebodys_own(backends: Mapping[str, Path], tmp_path: Path) -> None:
    """Images, model, back end and the alerts' runbook are where it says: another name there is another name here."""
    shutil.copytree(ROOT, tmp_path, dirs_exist_ok=True, ignore=lambda at, names: unneeded(Path(at), names))
    mine = shutil.copytree(
        tmp_path / KUBERNETES.relative_to(ROOT) / "overlays/example", tmp_path / "deploy/kubernetes/overlays/mine"
    )
    path = mine / "kustomization.yaml"
    text = path.read_text()
    for old, new in (
        ("registry.example.com/", "images.test/"),
        ("grafana.example.com", "grafana.test"),
        ("tempo.tracing:4317", "jaeger.test:4317"),
        ("Qwen/Qwen3-0.6B", "test/model"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    done = run(backends["kustomize"], "build", mine)
    assert done.returncode == 0, done.stderr
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert {image for image in images if "otel-cache" in image} == {
        f"images.test/{name}:0.1.0" for name in ("otel-cache", "otel-cache-vllm", "otel-cache-router")
    }
    (rules,) = [each for each in documents(done.stdout) if each["kind"] == "PrometheusRule"]
    alerts = [each for group in rules["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert [each["annotations"]["runbook_url"] for each in alerts] == [
        f"https://grafana.test/d/otel-cache-runbook?viewPanel=panel-{number}" for number in range(1, len(alerts) + 1)
    ]
    assert "value: jaeger.test:4317" in done.stdout and "tempo.tracing" not in done.stdout
    assert "model: test/model" in done.stdout

    # Without Prometheus' operator, as docs/operations.md says.
    less = load(path)
    less["components"].remove("../../components/prometheus-operator")
    del less["replacements"]
    path.write_text(yaml.safe_dump(less))
    done = run(backends["kustomize"], "build", mine)
    assert done.returncode == 0, done.stderr
    assert not {each["kind"] for each in documents(done.stdout)} & CUSTOM


def unneeded(at: Path, names: list[str]) -> list[str]:
    """Return what of the root kustomize reads nothing of."""
    return [name for name in names if at == ROOT and name not in ("collector", "deploy")]


def composed(compose: Path, folder: Path, *files: str) -> dict[str, Any]:
    """Return what Compose makes of files in deploy/compose."""
    done = run(compose, "--no-interpolation", *files, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(documents(done.stdout)[0])


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def test_compose(backends: Mapping[str, Path]) -> None:
    """One replica: Compose takes the file, and whatever a service waits for is there."""
    project = composed(backends["compose"], COMPOSE, "compose.yaml")
    for service in project["services"].values():
        assert set(service.get("depends_on", ())) <= set(project["services"])
    assert "router" not in project["services"]


def test_compose_with_two_replicas(backends: Mapping[str, Path]) -> None:
    """Two: each on its own GPU and port and under its own name, Prometheus knows both, the router waits for both."""
    services = composed(backends["compose"], COMPOSE, "compose.yaml", "compose.two-replicas.yaml")["services"]
    replicas = [services["vllm-0"], services["vllm-1"]]

    def of_each(key: str) -> list[Any]:
        return [replica[key] for replica in replicas]

    devices = [each["resources"]["reservations"]["devices"][0]["device_ids"] for each in of_each("deploy")]
    assert devices == [["0"], ["1"]]
    assert [[port["published"] for port in ports] for ports in of_each("ports")] == [["8000"], ["8001"]]
    # It prints the environment as an object, or, where files were merged, as a list.
    environments = [each if isinstance(each, dict) else dict(map(_pair, each)) for each in of_each("environment")]
    assert [each["OTEL_PYTHON_VLLM_CACHE_REPLICA_ID"] for each in environments] == ["vllm-0", "vllm-1"]
    assert replicas[0]["command"] == replicas[1]["command"]
    mounts = [Path(each["source"]).name for each in services["prometheus"]["volumes"] if "replicas" in each["source"]]
    assert mounts == ["replicas-2.yaml"]
    assert set(services["router"]["depends_on"]) == {"vllm-0", "vllm-1"}


def test_composes_loader_looks(backends: Mapping[str, Path], tmp_path: Path) -> None:
    """A field that Compose does not know is refused."""
    path = tmp_path / "compose.yaml"
    path.write_text((COMPOSE / "compose.yaml").read_text().replace("shm_size:", "shmsize:"))
    done = run(backends["compose"], "--no-interpolation", path, cwd=tmp_path)
    assert done.returncode != 0 and "shmsize" in done.stderr


def test_compose_refuses_to_start_without_a_key(backends: Mapping[str, Path], tmp_path: Path) -> None:
    """And says how to make one."""
    shutil.copy(COMPOSE / "compose.yaml", tmp_path)
    done = run(backends["compose"], "compose.yaml", cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert done.returncode != 0
    assert "FINGERPRINT_KEY is missing a value: make one in .env, as with openssl rand -hex 32" in done.stderr


def test_the_collector_takes_both_files(backends: Mapping[str, Path]) -> None:
    """dev.yaml with what Compose adds for Tempo is one configuration."""
    done = run(
        backends["collector"], "validate", "--config", CONFIGS / "dev.yaml", "--config", COMPOSE / "collector.yaml"
    )
    assert done.returncode == 0, done.stderr


def collector_commands() -> list[tuple[str, ...]]:
    """Return the arguments of each collector that a page starts."""
    shell = "".join(blocks((CONFIGS / "README.md").read_text(), "sh"))
    return [line.words[1:] for line in lines(shell) if line.words[0] == "otelcol"]


@pytest.mark.parametrize("words", collector_commands(), ids=" ".join)
def test_the_collector_takes_what_its_page_says(backends: Mapping[str, Path], words: tuple[str, ...]) -> None:
    """Each command is one that it starts with."""
    done = run(backends["collector"], "validate", *words, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_images_build(tmp_path: Path) -> None:
    """What the Dockerfile copies and runs makes an environment whose `otel-cache` runs, and a wheel: without Docker."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    stage = text[text.index(" AS build\n") : text.index(" AS otel-cache\n")]
    source, environment, wheels = tmp_path / "src", tmp_path / "opt", tmp_path / "dist"
    source.mkdir()
    settings = {
        **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")},
        # Where no uv was installed, set-up has put one there.
        "PATH": f"{os.environ['PATH']}:{downloads() / 'uv' / 'bin'}",
        "UV_PROJECT_ENVIRONMENT": str(environment),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
    }
    for instruction, rest in re.findall(r"^(COPY|RUN) (.+)$", stage, re.MULTILINE):
        if instruction == "COPY":
            *names, target = rest.split()
            for name in names:
                place = source / target / name if target == "./" else source / target
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, place)
        elif not rest.startswith("pip install uv"):
            done = run("sh", "-ec", rest.replace("/dist", str(wheels)), cwd=source, env=settings)
            assert done.returncode == 0, done.stderr[-2000:]
    shutil.rmtree(source)
    said = run(environment / "bin" / "otel-cache", "analyze", "--example", cwd=tmp_path, env=settings)
    assert said.returncode == 0 and "shifted_boundary" in said.stdout, said.stderr
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name.startswith("otel_cache-")
