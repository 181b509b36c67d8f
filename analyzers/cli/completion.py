"""What a shell completes: files and folders, and the names of rules."""

import click
from click.shell_completion import CompletionItem

FILE = click.Path()
"""Any path, existing or not, that a shell completes as one; `-` and addresses in object storage pass as they are."""


def rules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return lists of rules, separated by commas, that `incomplete` may become: its last name is completed."""
    from analyzers.rules import RULES

    *before, last = incomplete.split(",")
    return [
        CompletionItem(",".join([*before, rule]))
        for rule in RULES
        if rule.startswith(last.strip()) and rule not in before
    ]
