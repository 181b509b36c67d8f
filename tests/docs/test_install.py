"""What the README says of installing: each dependency, what vLLM's processes import, and which vLLM is tested."""

import re
import subprocess
import sys
import tomllib

from vllm_versions import ENGINES, INSTALLED

from docs.markdown import ROOT, named, read, rows, sections

PARTS = sections(read("README.md"))
PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
PACKAGES = {cells[0]: named(cells[1], r"[a-z0-9.-]+") for cells in rows(PARTS["Install"])}
PLUGIN = next(packages for purpose, packages in PACKAGES.items() if purpose.startswith("the plugin"))


def test_every_dependency_has_its_purpose() -> None:
    """Each stands once, and none that is gone; none is bounded from above, or vLLM's pins could not be kept."""
    told = [name for packages in PACKAGES.values() for name in packages]
    wanted = [re.match(r"[\w.-]+", each)[0] for each in PROJECT["dependencies"]]  # type: ignore[index]
    assert sorted(told) == sorted(wanted)
    assert not [each for each in PROJECT["dependencies"] if re.search(r"==|~=|<=|(?<!version )<", each.split(";")[0])]


def test_the_plugin_imports_no_other() -> None:
    """All that vLLM's processes load comes up where nothing but these can be imported, and needs each of them."""
    others = {name for name, packages in PACKAGES.items() for name in packages} - PLUGIN
    modules = {each.replace("-", "_") for each in others} | {"opentelemetry", "grpc", "yaml", "backports"}
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {modules!r}:
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Refuse())
import otel_cache.plugin, otel_cache.instrumentor
print(*sorted(set(each.partition(".")[0] for each in sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= PLUGIN
    assert f"pip install {' '.join(sorted(PLUGIN))} " in PARTS["Install"]


def test_versions_of_make_test() -> None:
    """Those that the Makefile sets up, schedulers and engines."""
    (lanes,) = re.findall(r"^LANES := (.*)$", read("Makefile"), re.MULTILINE)
    (said,) = re.findall(
        r"`make test` runs the schedulers of (.+?), and the engines of (.+?)\)", _line("vLLM versions")
    )
    schedulers, engines = (set(re.findall(r"\d+\.\d+", part)) for part in said)
    assert {*lanes.split(), INSTALLED} == {f"{each}.0" for each in schedulers | engines}
    assert {f"{each}.0" for each in engines} == set(ENGINES)


def _line(heading: str) -> str:
    return PARTS[heading].replace("\n", " ")
