"""Writes what is generated from the registry of names. `make semconv`, or `python -m scripts.semconv [--check]`.

With `--check` nothing is written: the exit code is 1 where a file is not what the registry says.
"""

import sys
from pathlib import Path

from scripts.semconv import arrays, connector, constants, reference, types
from scripts.semconv.registry import ROOT, RegistryError, load


def main(arguments: list[str]) -> int:
    """Generate, or check; return the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.semconv [--check]", file=sys.stderr)
        return 2
    try:
        stale = {path: text for path, text in generate().items() if path.read_text(encoding="utf-8") != text}
    except RegistryError as error:
        print(f"semconv: {error}", file=sys.stderr)
        return 2
    for path, text in stale.items():
        name = path.relative_to(ROOT)
        if arguments:
            print(f"semconv: {name} is not what the registry says: run `make semconv`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"semconv: wrote {name}", file=sys.stderr)
    return 1 if arguments and stale else 0


def generate() -> dict[Path, str]:
    """Return the text of every generated file."""
    registry = load()
    return {
        constants.PATH: constants.render(registry),
        arrays.PATH: arrays.render(registry),
        types.PATH: types.render(registry),
        reference.PATH: reference.render(registry, reference.PATH.read_text(encoding="utf-8")),
        **connector.render_all(registry),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
