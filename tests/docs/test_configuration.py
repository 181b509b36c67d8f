"""Environment variables: each that the code reads is documented, and none that it does not read."""

import re
from pathlib import Path

from docs.markdown import DOCS, ROOT, named, read, sections, table
from otel_cache import config
from otel_cache.instrumentor import TARGETS

OURS = re.compile(rf"\b{config.PREFIX}[A-Z_]+\b")
# OpenTelemetry's SDK and exporters read them, not our code.
OF_THE_SDK = {
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_RESOURCE_ATTRIBUTES",
}
# The analyzer names it in a fix; the lab sets it for vLLM and never reads it.
NOT_READ = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL"}


def sources() -> list[Path]:
    """Return the code of the packages."""
    return [path for package in ("otel_cache", "analyzers") for path in (ROOT / package).rglob("*.py")]


def documented() -> set[str]:
    """Return the variables in the tables of docs/configuration.md."""
    text = read("docs/configuration.md")
    parts = [part for heading, part in sections(text).items() if heading.startswith("Environment")]
    return {name for part in parts for name in table(part)}


def ours_in_code() -> set[str]:
    """Return our own variables, as the one module that reads them names them."""
    values = {value for value in vars(config).values() if isinstance(value, str)}
    return {value for value in values if value.startswith(config.PREFIX) and value != config.PREFIX}


def test_our_variables() -> None:
    """The README and docs/configuration.md have each of them; no document has another."""
    known = ours_in_code()
    assert known
    assert {name for name in documented() if name.startswith(config.PREFIX)} == known
    assert set(OURS.findall(sections(read("README.md"))["Environment variables"])) == known
    for path in [*DOCS, *sources()]:
        unknown = set(OURS.findall(path.read_text(encoding="utf-8"))) - known
        assert not unknown, f"{path.relative_to(ROOT)} names {', '.join(sorted(unknown))}"


def test_variables_of_others() -> None:
    """What else the code reads is documented, and what is documented is read or the exporters'."""
    read_names = set()
    for path in sources():
        text = path.read_text(encoding="utf-8")
        read_names |= set(re.findall(r"environ(?:\.get|\.setdefault)?[\[(]\s*\"([A-Z][A-Z_]+)\"", text))
        read_names |= set(re.findall(r"^[A-Z_]+ = \"((?:OTEL|VLLM)_[A-Z_]+)\"$", text, flags=re.MULTILINE))
    others = {name for name in documented() if not name.startswith(config.PREFIX)}
    assert others - OF_THE_SDK == {name for name in read_names if not name.startswith(config.PREFIX)} - NOT_READ


def test_hooks() -> None:
    """The hooks that can be left out are named."""
    row = next(row for name, row in _rows() if name == config.DISABLED_HOOKS)
    assert named(row[-1], r"[a-z_]+") == {target.hook for target in TARGETS}


def _rows() -> list[tuple[str, list[str]]]:
    text = sections(read("docs/configuration.md"))["Environment of vLLM's processes"]
    return list(table(text).items())
