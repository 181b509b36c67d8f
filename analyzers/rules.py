"""The rules that findings have, by name, for gates that name them."""

import difflib

from analyzers import findings, observations

RULES = (*findings.RULES, *observations.RULES)
"""Those on lost classes, then the others."""


def no_rule(name: str) -> str:
    """Say that there is no rule `name`, which there are, and which may be meant."""
    close = difflib.get_close_matches(name, RULES, n=1)
    meant = f". Did you mean {close[0]!r}?" if close else ""
    return f"no rule {name!r}; there are {', '.join(RULES)}{meant}"
