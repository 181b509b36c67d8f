"""Builds or finds the programs that traces go to, and those that check deploy/. `make backends`.

    python -m scripts.backends           build what is missing, and say where everything is
    python -m scripts.backends --paths   say where everything is, without building: a JSON object of name to path

The collector is built by its builder from `collector/builder.yaml`, Jaeger from its Go module, and Prometheus is
Debian's package, unpacked and not installed, so that no service starts. vLLM's router has an environment of its own.
All lie in one folder outside this tree, each below a name that its pins make: a second run finds them, a changed pin
builds anew.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "collector" / "builder.yaml"
FOLDER = "OTEL_CACHE_BACKENDS"
JAEGER = "1.76.0"
"""The Go module's version; the program is Jaeger 2."""
ROUTER = "0.1.17"
"""Of `vllm-router` on PyPI: what tests put in front of two engines."""
JAEGER_MODULE = "github.com/jaegertracing/jaeger"
KUSTOMIZE = "5.8.1"
OBJECTS = "1.8.0"
"""Of Versity's gateway, which serves a folder as object storage by S3's API."""
COMPOSE = "2.16.2"
"""Of compose-go, the library that Docker Compose reads its files with; its program says whether it would."""
JOBS = 2
"""Packages that Go compiles at a time: the linker of either program takes 2 GB by itself."""


class BackendError(Exception):
    """A program cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Backend:
    """A program: the folder that its pins name, its files in there by name, and what fills such a folder."""

    folder: str
    programs: Mapping[str, str]
    build: Callable[[Path], None]


def downloads() -> Path:
    """Return the folder that holds what set-up has fetched."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-cache"


def cache() -> Path:
    """Return the folder that holds the programs."""
    if named := os.environ.get(FOLDER):
        return Path(named).expanduser().absolute()
    return downloads() / "backends"


def backends() -> list[Backend]:
    """Return the programs and how each is built."""
    pins = hashlib.sha256(MANIFEST.read_bytes()).hexdigest()[:12]
    return [
        Backend(f"collector-{pins}", {"collector": "otelcol"}, build_collector),
        Backend(f"jaeger-{JAEGER}", {"jaeger": "jaeger"}, build_jaeger),
        Backend(f"objects-{OBJECTS}", {"objects": "versitygw"}, build_objects),
        Backend(f"kustomize-{KUSTOMIZE}", {"kustomize": "kustomize"}, build_kustomize),
        Backend(f"compose-{COMPOSE}", {"compose": "cmd"}, build_compose),
        Backend("prometheus", {"prometheus": "usr/bin/prometheus", "promtool": "usr/bin/promtool"}, unpack_prometheus),
        Backend(f"router-{ROUTER}", {"router": "bin/python"}, install_router),
    ]


def paths() -> dict[str, Path]:
    """Return where each program is, or would be."""
    return {name: cache() / each.folder / file for each in backends() for name, file in each.programs.items()}


def ensure() -> dict[str, Path]:
    """Build what is missing; return where each program is.

    Raises:
        BackendError: one cannot be built.

    """
    cache().mkdir(parents=True, exist_ok=True)
    for backend in backends():
        home = cache() / backend.folder
        if all((home / file).is_file() for file in backend.programs.values()):
            continue
        say(f"making {home.name} in {home.parent}")
        began = time.monotonic()
        # A run that is stopped half-way leaves nothing that the next one would take for whole.
        work = Path(tempfile.mkdtemp(prefix=f".{backend.folder}-", dir=cache()))
        try:
            backend.build(work)
            for file in backend.programs.values():
                if not (work / file).is_file():
                    raise BackendError(f"{home.name} was made, and has no {file}")
            work.chmod(0o755)
            shutil.rmtree(home, ignore_errors=True)
            work.rename(home)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        say(f"{home.name} took {time.monotonic() - began:.0f} s")
    return paths()


def build_collector(home: Path) -> None:
    """Build the collector with the builder of its own release."""
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    version = manifest["dist"]["version"]
    source = home / "source"
    manifest["dist"] |= {"name": "otelcol", "output_path": str(source)}
    (home / "builder.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    builder = f"go.opentelemetry.io/collector/cmd/builder@v{version}"
    go(home, "run", builder, "--config", str(home / "builder.yaml"))
    (source / "otelcol").rename(home / "otelcol")
    shutil.rmtree(source)


def build_jaeger(home: Path) -> None:
    """Build Jaeger as a dependency of an empty module: its own has a `replace`, with which `go install` refuses it."""
    source = home / "source"
    source.mkdir()
    (source / "go.mod").write_text(
        f"module jaeger\n\ngo 1.25.0\n\nrequire {JAEGER_MODULE} v{JAEGER}\n", encoding="utf-8"
    )
    flags = ("-mod=mod", "-trimpath", "-ldflags=-s -w")
    go(source, "build", *flags, "-o", str(home / "jaeger"), f"{JAEGER_MODULE}/cmd/jaeger")
    shutil.rmtree(source)


def build_objects(home: Path) -> None:
    """Install the server of object storage."""
    install(home, f"github.com/versity/versitygw/cmd/versitygw@v{OBJECTS}")


def build_kustomize(home: Path) -> None:
    """Install kustomize."""
    install(home, f"sigs.k8s.io/kustomize/kustomize/v5@v{KUSTOMIZE}")


def build_compose(home: Path) -> None:
    """Install the program of compose-go."""
    install(home, f"github.com/compose-spec/compose-go/v2/cmd@v{COMPOSE}")


def unpack_prometheus(home: Path) -> None:
    """Unpack Debian's package, which brings promtool."""
    if shutil.which("apt-get") is None:
        raise BackendError("Prometheus comes from Debian's package, and there is no apt-get here")
    if subprocess.run(["apt-get", "download", "prometheus"], cwd=home, check=False).returncode:
        # New machines have no list of packages yet, old ones an outdated one.
        run(home, os.environ, "apt-get", "update")
        run(home, os.environ, "apt-get", "download", "prometheus")
    for package in home.glob("prometheus_*.deb"):
        run(home, os.environ, "dpkg", "-x", str(package), str(home))
        package.unlink()


def install(home: Path, package: str) -> None:
    """Build a package that stands alone; its program is then in `home`."""
    go(home, "install", "-trimpath", "-ldflags=-s -w", package, GOBIN=str(home))


def install_router(home: Path) -> None:
    """Install vLLM's router into an environment of its own, whose Python runs it as a module."""
    run(home, os.environ, sys.executable, "-m", "venv", str(home))
    run(home, os.environ, str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", f"vllm-router=={ROUTER}")


def go(folder: Path, *arguments: str, **environment: str) -> None:
    """Run Go in `folder`, gently."""
    if shutil.which("go") is None:
        raise BackendError(
            "the collector and Jaeger are built with Go, and there is no `go` here: install Go 1.25 or later"
        )
    flags = f"{os.environ.get('GOFLAGS', '')} -p={JOBS} -buildvcs=false"
    settings = {**os.environ, "GOFLAGS": flags.strip(), "GOWORK": "off", **environment}
    run(folder, settings, "nice", "-n", "5", "go", *arguments)


def run(folder: Path, environment: Mapping[str, str], *command: str) -> None:
    """Run a command; its output goes to stderr."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise BackendError(f"`{' '.join(command)}` ended with {done.returncode}: see above")


def say(text: str) -> None:
    """Tell whoever waits."""
    print(f"backends: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Build or find; return the exit code."""
    if arguments == ["--paths"]:
        print(json.dumps({name: str(path) for name, path in paths().items()}))
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        for name, path in ensure().items():
            print(f"{name}\t{path}")
    except BackendError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
