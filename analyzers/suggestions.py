"""What to try in the place of a name that there is not."""

import difflib
from collections.abc import Iterable

FEW = 8
"""So many names are told whole."""
SHOWN = 3
"""Of more, so many: those that come near, or the first."""


def instead_of(name: str, known: Iterable[str]) -> str:
    """Return which names there are, or which may be meant, as the end of a sentence; "" where there is none."""
    names = list(dict.fromkeys(known))
    if not names:
        return ""
    if len(names) <= FEW:
        return f"there {'is only' if len(names) == 1 else 'are'} {', '.join(names)}"
    near = [each for each in names if each.startswith(name)] or difflib.get_close_matches(name, names, n=SHOWN)
    if near:
        *others, last = near[:SHOWN]
        return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    return f"there are {', '.join(names[:SHOWN])} and {len(names) - SHOWN:,} more"
