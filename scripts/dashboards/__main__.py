"""Writes Grafana's dashboards and Prometheus' rules. `make dashboards`, or `python -m scripts.dashboards [--check]`.

With `--check` nothing is written: the exit code is 1 where a file is not what would be written.
"""

import re
import sys
from pathlib import Path

from scripts.dashboards import boards, grafana, rules
from scripts.semconv.registry import ROOT

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
RUNBOOK = ROOT / "docs" / "runbook.md"


def main(arguments: list[str]) -> int:
    """Write, or check; return the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.dashboards [--check]", file=sys.stderr)
        return 2
    stale = {path: text for path, text in generate().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        name = path.relative_to(ROOT)
        if arguments:
            print(f"dashboards: {name} is not what is written by `make dashboards`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"dashboards: wrote {name}", file=sys.stderr)
    return 1 if arguments and stale else 0


def generate() -> dict[Path, str]:
    """Return the text of every generated file."""
    numbers = {alert.name: number for number, alert in enumerate(rules.ALERTS, 1)}
    sections = runbook(RUNBOOK.read_text(encoding="utf-8"))
    texts = [(name, sections[name]) for name in numbers]
    made = {FOLDER / f"{board.uid}.json": grafana.render(board, numbers) for board in boards.BOARDS}
    made[FOLDER / f"{boards.RUNBOOK.uid}.json"] = grafana.render_texts(boards.RUNBOOK, texts)
    return made | {rules.PATH: rules.render(), rules.OPERATOR: rules.render_for_operator()}


def runbook(text: str) -> dict[str, str]:
    """Return the sections of docs/runbook.md by their heading; each stands alone, so links to other pages go."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    unlinked = (re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part).strip() for part in parts[2::2])
    return dict(zip(parts[1::2], unlinked, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
