"""Docker Compose: services that lead to one another, mount files that there are, and are locked down."""

import re
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from docs.markdown import read

from analyzers.cli.main import commands

from .manifests import COMPOSE, CONFIGS, ROOT, UID, arguments, load, services, settings

SERVICES = services()
NAMES = sorted(SERVICES)
# The user of these images is nobody's but theirs.
OWN_USER = {"jaeger", "prometheus", "grafana"}
HOST = re.compile(r"(?:https?://)?([a-z][a-z0-9-]*):(\d{2,5})\b")


@pytest.mark.parametrize("name", NAMES)
def test_locked_down(name: str) -> None:
    """No privilege, nothing to write to but volumes, no root, and ports of this machine alone."""
    service = SERVICES[name]
    if "extends" in service:
        service = SERVICES[service["extends"]["service"]] | service
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name == "folders":
        # It gives new volumes their owner, and is gone.
        assert (service["user"], service["cap_add"], service["network_mode"]) == ("0:0", ["CHOWN"], "none")
    elif name not in OWN_USER:
        assert service["user"] == f"{UID}:{UID}"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", NAMES)
def test_mounts(name: str) -> None:
    """A path is a file or folder of this repository, a name is a volume."""
    volumes = load(COMPOSE / "compose.yaml")["volumes"]
    for mount in SERVICES[name].get("volumes", ()):
        source, _, target = mount.partition(":")
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
            assert target.endswith(":ro")
        else:
            assert source in volumes, source


@pytest.mark.parametrize("name", NAMES)
def test_images(name: str) -> None:
    """An image has a version, or is built here."""
    service = SERVICES[name]
    if "extends" not in service and "image" in service:
        assert "build" in service or re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"])


def test_addresses_are_services() -> None:
    """Whoever is called by name is a service, in what runs and in what it is configured with."""
    texts = [" ".join(arguments(service)) + " " + " ".join(settings(service).values()) for service in SERVICES.values()]
    files = [
        "compose/collector.yaml",
        "prometheus/prometheus.yml",
        "compose/replicas-1.yaml",
        "compose/replicas-2.yaml",
    ]
    files.append("grafana/provisioning/datasources/otel-cache.yaml")
    texts += [(COMPOSE.parent / file).read_text(encoding="utf-8") for file in files]
    called = {host for text in texts for host, _ in HOST.findall(text)} - {"localhost"}
    assert called <= set(SERVICES)
    assert {"collector", "jaeger", "tempo", "prometheus", "vllm-0", "vllm-1"} <= called


def test_every_replica_is_scraped_under_its_id() -> None:
    """The scrape labels a replica with the id that its spans have, one replica or two."""
    ids = {name: settings(SERVICES[name])["OTEL_PYTHON_VLLM_CACHE_REPLICA_ID"] for name in ("vllm-0", "vllm-1")}
    for file, names in (("replicas-1.yaml", ["vllm-0"]), ("replicas-2.yaml", ["vllm-0", "vllm-1"])):
        scraped = {target: group["labels"] for group in load(COMPOSE / file) for target in group["targets"]}
        assert scraped == {f"{name}:8000": {"vllm_replica_id": ids[name]} for name in names}
    assert settings(SERVICES["router"]) == {} and arguments(SERVICES["router"])[-2:] == [
        "http://vllm-0:8000",
        "http://vllm-1:8000",
    ]


def test_one_socket_for_both() -> None:
    """vLLM and the sidecar name one socket, in a folder that the sidecar makes in their volume."""
    socket = settings(SERVICES["vllm-0"])["OTEL_PYTHON_VLLM_CACHE_SOCKET"]
    assert f"--socket={socket}" in arguments(SERVICES["sidecar"])
    assert f"--socket={socket}" in SERVICES["sidecar"]["healthcheck"]["test"]
    for name in ("vllm-0", "sidecar"):
        (folder,) = [each.partition(":")[2] for each in SERVICES[name]["volumes"] if each.startswith("socket:")]
        assert socket.startswith(f"{folder}/") and socket.count("/") == folder.count("/") + 2


def test_our_commands_have_these_options() -> None:
    """What the sidecar and the analyzer are started with are commands and options of ours."""
    context = click.Context(commands)
    for name in ("sidecar", "analyze"):
        command = commands.get_command(context, name)
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        words = [*SERVICES[name].get("entrypoint", ()), *arguments(SERVICES[name])]
        assert name in words
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options


def test_the_collector_reads_what_is_set() -> None:
    """Each variable of the collector is one that its configuration reads."""
    read = set(re.findall(r"\$\{env:(\w+)", (CONFIGS / "dev.yaml").read_text(encoding="utf-8")))
    assert set(settings(SERVICES["collector"])) <= read


def test_every_variable_has_an_example() -> None:
    """What Compose takes from its environment stands in .env.example, and nothing else does."""
    text = "".join(path.read_text(encoding="utf-8") for path in COMPOSE.glob("compose*.yaml"))
    used = set(re.findall(r"\$\{(\w+)", text)) | set(re.findall(r"environment: ([A-Z_]+)$", text, re.MULTILINE))
    example = (COMPOSE / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\w+)=", example, re.MULTILINE)) == used


def test_the_image_is_built_of_what_it_needs() -> None:
    """The image's build has what the project's own build file names, and the ignore file lets all of it through."""
    docker = COMPOSE.parent / "docker"
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.+)$", (docker / "Dockerfile").read_text(), re.MULTILINE):
        copied |= set(line.split()[:-1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], project["project"]["readme"]}
    assert needed | {"pyproject.toml", "uv.lock", *project["project"]["license-files"]} == copied
    allowed = set(re.findall(r"^!(.+)$", (docker / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert allowed == copied and all((ROOT / name).exists() for name in copied)


def test_the_fingerprints_key_is_made(tmp_path: Path) -> None:
    """There is no key until somebody makes one; the command of docs/operations.md does, each time another."""
    (command,) = re.findall(r"^sed .+FINGERPRINT_KEY.+$", read("docs/operations.md"), re.MULTILINE)
    example = (COMPOSE / ".env.example").read_text(encoding="utf-8")
    assert re.findall(r"^FINGERPRINT_KEY=(.*)$", example, re.MULTILINE) == [""]
    (tmp_path / ".env.example").write_text(example)
    keys = set()
    for _ in range(2):
        subprocess.run(["sh", "-ec", command], cwd=tmp_path, timeout=30, check=True)
        keys |= set(re.findall(r"^FINGERPRINT_KEY=([0-9a-f]{64})$", (tmp_path / ".env").read_text(), re.MULTILINE))
    assert len(keys) == 2
