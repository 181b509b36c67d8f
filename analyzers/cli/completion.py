"""What a shell completes: files and folders, and the words that an option or an argument knows."""

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Words = Callable[[], Iterable[str]]
"""Returns the words that are known: called when a shell asks, since they may be costly to import."""

FILE = click.Path()
"""Any path, existing or not, that a shell completes as one; `-` and addresses in object storage pass as they are."""
DENSE, DEFAULT = "dense", "default"


def one_of(words: Words) -> Completer:
    """Return what completes one word of `words`."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words() if word.startswith(incomplete)]

    return complete


def list_of(words: Words) -> Completer:
    """Return what completes the last of words that are separated by commas; none of them twice."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        *before, last = incomplete.split(",")
        given = [word.strip() for word in before]
        return [
            CompletionItem(",".join([*before, word]))
            for word in words()
            if word.startswith(last.strip()) and word not in given
        ]

    return complete


def path_or(words: Words) -> Completer:
    """Return what completes one word of `words`, or a path.

    Bash shows paths of its own only where nothing else is offered, so those beside the words are offered as words.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        known = [word for word in words() if word.startswith(incomplete)]
        if not known:
            return [CompletionItem(incomplete, type="file")]
        here = sorted(path.name for path in Path().iterdir() if path.name.startswith(incomplete))
        paths = [name + "/" * Path(name).is_dir() for name in here if incomplete or not name.startswith(".")]
        return [CompletionItem(word) for word in dict.fromkeys([*known, *paths])]

    return complete


def rules() -> Iterable[str]:
    """Return the rules that findings have."""
    from analyzers.rules import RULES

    return RULES


def scenarios() -> Iterable[str]:
    """Return the scenarios that come with otel-cache."""
    from analyzers.vllm_lab.scenario import shipped_scenarios

    return shipped_scenarios()


def routings() -> Iterable[str]:
    """Return how requests may be routed."""
    from typing import get_args

    from analyzers.vllm_lab.routing import Routing

    return get_args(Routing)


def kinds() -> Iterable[str]:
    """Return the kinds of KV-cache groups."""
    from typing import get_args

    from analyzers.vllm_lab.scenario import Kind

    return get_args(Kind)


def retentions() -> Iterable[str]:
    """Return the retention intervals that are no number of tokens."""
    return "0", DENSE, DEFAULT


def vllm_versions() -> Iterable[str]:
    """Return the versions of vLLM that were tested."""
    from otel_cache.package import TESTED_VLLM

    return TESTED_VLLM
