"""Reads the files of deploy/."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
RECORDER = KUBERNETES / "components" / "recorder"
COMPOSE = DEPLOY / "compose"
CONFIGS = ROOT / "collector"
UID = "10001"


def load(path: Path) -> Any:
    """Return what a YAML file holds."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML text that are not empty."""
    return [each for each in yaml.safe_load_all(text) if each]


@functools.cache
def resources() -> list[dict[str, Any]]:
    """Return Kubernetes' resources of all folders, as they stand in the files; collectors' configurations are none."""
    files = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml")
    files = [path for path in files if path.parent != RECORDER / "collector"]
    return [each for path in files for each in documents(path.read_text(encoding="utf-8"))]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the pod's template of everything that runs pods."""
    for resource in resources():
        if template := resource.get("spec", {}).get("template"):
            yield resource["metadata"]["name"], template


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod's template, sidecars included."""
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def services() -> dict[str, dict[str, Any]]:
    """Return the services of both Compose files by name; what `extends` takes over is not in those that have it."""
    found: dict[str, dict[str, Any]] = {}
    for file in ("compose.yaml", "compose.two-replicas.yaml"):
        for name, service in _compose(COMPOSE / file)["services"].items():
            found.setdefault(name, service)
    return found


def settings(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a service, or of a container: those whose value stands there."""
    environment = service.get("environment", service.get("env", {}))
    if isinstance(environment, dict):
        return {name: str(value) for name, value in environment.items()}
    return {each["name"]: str(each.get("value", "")) for each in environment}


def arguments(service: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a service or a container."""
    return [str(each) for each in itertools.chain(service.get("command") or (), service.get("args") or ())]


class _Compose(yaml.SafeLoader):
    """Knows Compose's tags, which say how files are merged."""


def _plain(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return None


_Compose.add_multi_constructor("!", _plain)


def _compose(path: Path) -> dict[str, Any]:
    return dict(yaml.load(path.read_text(encoding="utf-8"), Loader=_Compose))
