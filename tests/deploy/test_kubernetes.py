"""Kubernetes: resources by its own schema, locked down, and of one piece with what they deploy."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_cache import config

from .manifests import (
    CONFIGS,
    KUBERNETES,
    RECORDER,
    UID,
    arguments,
    containers,
    load,
    pods,
    resources,
    services,
    settings,
)

VERSION = "1.33"
PODS = dict(pods())
RUNNING = ("StatefulSet", "DaemonSet", "Deployment")
CUSTOM = {"PodMonitor", "PrometheusRule"}
"""Kinds of Prometheus' operator: their schema is not Kubernetes'."""
OURS = re.compile(rf"{config.PREFIX}\w+")


def named(kind: str) -> dict[str, dict[str, Any]]:
    """Return the resources of a kind by name."""
    return {each["metadata"]["name"]: each for each in resources() if each["kind"] == kind}


def matching(labels: Mapping[str, str]) -> list[str]:
    """Return the pods that a selector means."""
    return [name for name, pod in PODS.items() if labels.items() <= pod["metadata"]["labels"].items()]


def ports(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the ports of a pod by name."""
    return {port["name"]: port["containerPort"] for each in containers(pod) for port in each.get("ports", ())}


@pytest.mark.parametrize("resource", resources(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_schema(resource: dict[str, Any]) -> None:
    """Kubernetes knows every field, and its type."""
    if resource["kind"] in CUSTOM:
        with pytest.raises(kubernetes_validate.SchemaNotFoundError):
            kubernetes_validate.validate(resource, VERSION, strict=True)
    else:
        kubernetes_validate.validate(resource, VERSION, strict=True)


def test_the_schema_is_strict() -> None:
    """A field that Kubernetes does not know is refused."""
    pod = copy.deepcopy(named("StatefulSet")["vllm"])
    pod["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFilesystem"):
        kubernetes_validate.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_locked_down(name: str) -> None:
    """No root, no privilege, no token of the API, nothing to write to but volumes, and limits: of every container."""
    spec = PODS[name]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] in named("ServiceAccount")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert str(spec["securityContext"]["runAsUser"]) == str(spec["securityContext"]["runAsGroup"]) == UID
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(PODS[name]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["limits"]) & set(container["resources"]["requests"])
    assert not any("hostPath" in volume for volume in spec.get("volumes", ()))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


@pytest.mark.parametrize("name", PODS)
def test_volumes(name: str) -> None:
    """Each mount has its volume, none is left over, and what is written to has a size."""
    resource = next(each for kind in RUNNING for each in [named(kind).get(name)] if each)
    claims = {each["metadata"]["name"] for each in resource["spec"].get("volumeClaimTemplates", ())}
    volumes = {volume["name"]: volume for volume in PODS[name]["spec"].get("volumes", ())}
    mounted = {mount["name"] for each in containers(PODS[name]) for mount in each.get("volumeMounts", ())}
    assert mounted == claims | set(volumes)
    assert all("sizeLimit" in volume["emptyDir"] for volume in volumes.values() if "emptyDir" in volume)


def test_one_socket_for_both() -> None:
    """vLLM and its sidecar name one socket, in a folder that the sidecar makes in the volume that both mount."""
    vllm, sidecar = (
        next(each for each in containers(PODS["vllm"]) if each["name"] == name) for name in ("vllm", "otel-cache")
    )
    socket = settings(vllm)["OTEL_PYTHON_VLLM_CACHE_SOCKET"]
    assert f"--socket={socket}" in arguments(sidecar)
    for container in (vllm, sidecar):
        (folder,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "socket"]
        # Not in the volume itself: its mode is not the sidecar's to choose.
        assert socket.startswith(f"{folder}/") and socket.count("/") == folder.count("/") + 2
    # A sidecar container: it is there as long as vLLM is.
    assert sidecar["restartPolicy"] == "Always" and sidecar in PODS["vllm"]["spec"]["initContainers"]


def test_services_lead_to_pods() -> None:
    """Each service means one pod, by ports that it has; each StatefulSet has its service."""
    for name, service in named("Service").items():
        (pod,) = matching(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports(PODS[pod])), name
    for each in named("StatefulSet").values():
        assert each["spec"]["serviceName"] in named("Service")


def test_policies_open_what_is_needed() -> None:
    """Each pod has a policy of its own, and between two pods what one lets out the other lets in."""
    policies = named("NetworkPolicy")
    assert policies["nothing-else"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    opened: dict[str, set[tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
    for name in PODS:
        spec = policies[name]["spec"]
        assert matching(spec["podSelector"]["matchLabels"]) == [name]
        for way, peers in (("ingress", "from"), ("egress", "to")):
            for rule in spec.get(way, ()):
                for peer in rule.get(peers, ()):
                    if "podSelector" in peer:
                        (other,) = matching(peer["podSelector"]["matchLabels"])
                        pair = (other, name) if way == "ingress" else (name, other)
                        opened[way] |= {(*pair, port["port"]) for port in rule["ports"]}
        for rule in spec.get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= set(ports(PODS[name]).values()), name
    assert opened["egress"] <= opened["ingress"]
    assert {("vllm", "otel-cache-agent", 4317), ("otel-cache-agent", "otel-cache-gateway", 4317)} <= opened["egress"]
    # What the recorder lets in, its component lets the agent send.
    patches = load(RECORDER / "kustomization.yaml")["patches"]
    (patch,) = [yaml.safe_load(each["patch"]) for each in patches if each["target"]["kind"] == "NetworkPolicy"]
    (rule,) = [each["value"] for each in patch]
    assert [matching(peer["podSelector"]["matchLabels"]) for peer in rule["to"]] == [["otel-cache-recorder"]]
    way = ("otel-cache-agent", "otel-cache-recorder", rule["ports"][0]["port"])
    assert way in opened["ingress"] - opened["egress"]


def test_monitors_lead_to_ports() -> None:
    """What Prometheus' operator is to scrape is a port of the pod, and the policy lets the monitoring in."""
    for monitor in named("PodMonitor").values():
        (pod,) = matching(monitor["spec"]["selector"]["matchLabels"])
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            number = ports(PODS[pod])[endpoint["port"]]
            rules = named("NetworkPolicy")[pod]["spec"]["ingress"]
            monitoring = {"namespaceSelector": {"matchLabels": {"otel-cache/monitoring": "true"}}}
            assert any(
                monitoring in rule["from"] and number in [port["port"] for port in rule["ports"]] for rule in rules
            )


@pytest.mark.parametrize("pod", ["otel-cache-agent", "otel-cache-gateway", "otel-cache-recorder"])
def test_configurations_read_what_is_set(pod: str) -> None:
    """Each variable of a collector is one that its configuration reads, and what a container listens on is open."""
    collector = next(each for each in containers(PODS[pod]) if each["name"] == "collector")
    maps = [each["configMap"]["name"] for each in PODS[pod]["spec"]["volumes"] if "configMap" in each]
    assert maps == [pod]
    files = config_map(pod)
    text = "".join(files[argument.removeprefix("--config=/etc/otelcol/")] for argument in arguments(collector))
    read = set(re.findall(r"\$\{env:(\w+)", text))
    given = {name for name in settings(collector) if name.startswith("OTEL_CACHE_")}
    assert given <= read, f"{pod}: {given - read}"
    # What has no default that works in a cluster has to be given.
    local = set(re.findall(r"\$\{env:(\w+):-(?:localhost|\./|/etc)", text))
    assert local <= given, f"{pod}: {local - given}"
    # The memory limiter acts before the limit of the container does.
    limit = collector["resources"]["limits"]["memory"]
    mib = int(limit[:-2]) * (1024 if limit.endswith("Gi") else 1)
    assert int(settings(collector)["OTEL_CACHE_COLLECTOR_MEMORY_MIB"]) <= 0.8 * mib


def config_map(name: str) -> dict[str, str]:
    """Return the configurations in a ConfigMap by the names of their files there."""
    found = {}
    for folder in (CONFIGS, RECORDER):
        for each in load(folder / "kustomization.yaml")["configMapGenerator"]:
            if each["name"] == name:
                for file in each["files"]:
                    key, _, path = file.rpartition("=")
                    found[key or path] = (folder / path).read_text(encoding="utf-8")
    return found


def test_the_recorder_keeps_what_its_volume_holds() -> None:
    """All files together take at most half of the volume, and what analyzes them cannot change them."""
    collector, analyze = containers(PODS["otel-cache-recorder"])
    given = settings(collector)
    (claim,) = named("StatefulSet")["otel-cache-recorder"]["spec"]["volumeClaimTemplates"]
    gib = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    files = int(given["OTEL_CACHE_COLLECTOR_FILE_BACKUPS"]) + 1
    assert files * int(given["OTEL_CACHE_COLLECTOR_FILE_MEGABYTES"]) <= gib * 1024 / 2
    (mount,) = [each for each in analyze["volumeMounts"] if each["name"] == "captures"]
    assert mount["readOnly"] is True and given["OTEL_CACHE_COLLECTOR_FILE"].startswith(f"{mount['mountPath']}/")


def test_one_release_of_the_collector() -> None:
    """Kubernetes, Compose and the builder's manifest take one release."""
    release = load(CONFIGS / "builder.yaml")["dist"]["version"]
    for folder in (KUBERNETES / "base", RECORDER):
        images = {each["name"]: each["newTag"] for each in load(folder / "kustomization.yaml")["images"]}
        assert images["otel/opentelemetry-collector-contrib"] == release
    assert services()["collector"]["image"] == f"otel/opentelemetry-collector-contrib:{release}"


def test_every_image_has_a_version() -> None:
    """No image is whatever is newest."""
    folders = [KUBERNETES / "base", KUBERNETES / "overlays" / "fleet", RECORDER]
    tagged = {
        each["name"] for folder in folders for each in load(folder / "kustomization.yaml")["images"] if each["newTag"]
    }
    assert {container["image"] for pod in PODS.values() for container in containers(pod)} == tagged


def test_our_variables_exist() -> None:
    """What is set of our own variables is read."""
    known = {value for value in vars(config).values() if isinstance(value, str)}
    for place in [each for pod in PODS.values() for each in containers(pod)] + list(services().values()):
        assert {name for name in settings(place) if OURS.fullmatch(name)} <= known
