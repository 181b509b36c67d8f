"""`otel-cache worksheet`: the boundaries of a prompt, computed."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzers.cli.completion import FILE, kinds, one_of, retentions, vllm_versions
from analyzers.cli.says import quiet_option, say, say_notes
from otel_cache.errors import ScenarioError, UsageError

if TYPE_CHECKING:
    from analyzers.settings import Settings

VERSION = "0.32"
"""Of which vLLM the flags are, unless they say."""
DROPPING = ("mtp", "eagle", "eagle3")
"""Methods that vLLM's scheduler treats alike: it drops a block of every hit, or lets keys look ahead."""
METHODS = (*DROPPING, "ngram")
_FLAGS = "worksheet"
"""In the place of a file's name, where the engine is that of the flags."""
_ENGINE_KEY = re.compile(r"engine\.(speculative|block_size|max_num_batched_tokens|\w+_unit|\w+_interval)")
_OPTION_OF = {"prefix_match_unit": "match_unit", "prefix_cache_retention_interval": "retention_interval"}
"""Keys of an engine whose flags have other names."""


@click.command("worksheet")
@click.option("--prompt-tokens", required=True, type=click.IntRange(1, 1 << 24), help="Length of the prompt.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PATH",
    type=FILE,
    help="Capture of a replica, whose settings are taken.",
)
@click.option("--replica", metavar="NAME", help="Which replica of the capture.")
@click.option(
    "--engine", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with an engine, as the lab takes it."
)
@click.option("--block-size", type=click.IntRange(1), help="Block of every group that names none, in tokens.  [16]")
@click.option(
    "--group", "groups", multiple=True, metavar="KIND[,KEY=VALUE...]", shell_complete=one_of(kinds),
    help="A KV-cache group: mamba, full_attention or sliding_window, with layers, block_size, window, draft as in a "
    "scenario. May be given several times; without it there is one group of full attention.",
)  # fmt: skip
@click.option(
    "--speculative", is_flag=False, flag_value="mtp", metavar="[METHOD|TOKENS]",
    shell_complete=one_of(lambda: METHODS),
    help="Speculative decoding: mtp (where nothing follows), eagle, eagle3 or ngram; or how many tokens mtp drafts.",
)  # fmt: skip
@click.option("--match-unit", type=click.IntRange(1), help="prefix_match_unit, in tokens.")
@click.option(
    "--retention-interval", metavar="TOKENS", shell_complete=one_of(retentions),
    help="Tokens, 0, dense, or default.  [default]",
)  # fmt: skip
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Most tokens in a step.  [8192]")
@click.option(
    "--vllm-version",
    metavar="VERSION",
    shell_complete=one_of(vllm_versions),
    help=f"Of which vLLM the rules are; of one that is newer than those known, the newest's.  [{VERSION}]",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@quiet_option
def command(
    prompt_tokens: int,
    sources: tuple[str, ...],
    replica: str | None,
    engine: Path | None,
    form: str,
    **flags: Any,
) -> None:
    """Compute on which boundary a prompt's repeats can hit, and whether the first one will.

    The settings are those of a replica in a capture (--from), of an engine file (--engine), or of the flags. With
    --from the retention interval and the batch-token limit can be replaced by flags: what would happen if.

    \b
    Example:
      otel-cache worksheet --prompt-tokens 11910 --block-size 1600 --speculative
      otel-cache worksheet --prompt-tokens 11910 --block-size 1600 --speculative --group mamba,layers=3 \\
        --group full_attention --retention-interval 0 --vllm-version 0.28
      otel-cache worksheet --prompt-tokens 11910 --from spans.jsonl --retention-interval 1600
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if sources:
        settings = _of_capture(sources, replica, engine, given)
    else:
        if replica is not None:
            raise click.UsageError("--replica names a replica of a capture; give the capture with --from")
        settings = _of_flags(engine, given, prompt_tokens)
    from analyzers.experiments.configured import version_note
    from analyzers.experiments.worksheet import worksheet
    from analyzers.reporters import worksheet as report

    if note := version_note(settings.version):
        say(f"note: {note}")
    sheet = worksheet(settings, prompt_tokens)
    click.echo(report.render_json(sheet) if form == "json" else report.render(sheet), nl=False)


def _of_capture(
    sources: tuple[str, ...], replica: str | None, engine: Path | None, given: dict[str, Any]
) -> "Settings":
    from analyzers.cli.analyze import read_capture
    from analyzers.experiments.captured import settings_of

    wrong = [_option(name) for name in given if name not in ("retention_interval", "max_num_batched_tokens")]
    wrong += ["--engine"] if engine else []
    if wrong:
        raise click.UsageError(f"{', '.join(sorted(wrong))}: the capture says it already; leave it out, or --from")
    capture = read_capture(sources)
    say_notes(capture.notes)
    return settings_of(capture, replica, given.get("retention_interval"), given.get("max_num_batched_tokens"))


def _of_flags(engine: Path | None, given: dict[str, Any], tokens: int) -> "Settings":
    from analyzers.experiments.configured import checked, configured
    from analyzers.vllm_lab.workload import engine_data

    version = given.pop("vllm_version", VERSION)
    data: dict[str, Any] = engine_data(engine) if engine else {"groups": [{"kind": "full_attention"}]}
    for name, key in (("block_size", "block_size"), ("match_unit", "prefix_match_unit"),
                      ("max_num_batched_tokens", "max_num_batched_tokens")):  # fmt: skip
        if name in given:
            data[key] = given[name]
    if "groups" in given:
        data["groups"] = [_group(text) for text in given["groups"]]
    if "speculative" in given:
        data["speculative"] = _speculative(given["speculative"])
    if "retention_interval" in given:
        interval = given["retention_interval"]
        data["prefix_cache_retention_interval"] = int(interval) if interval.isdecimal() else interval
    try:
        return configured(checked(data, str(engine) if engine else _FLAGS, tokens), version)
    except ScenarioError as error:
        raise UsageError(_by_flag(str(error), given, engine)) from None


def _by_flag(message: str, given: dict[str, Any], engine: Path | None) -> str:
    """Name, in place of a place in an engine, the flag that said what stands there."""
    found = re.match(rf"{re.escape(str(engine or _FLAGS))}: engine\.(\w+)(?:\[(\d+)\])?(?:\.(\w+))?: ", message)
    name = _OPTION_OF.get(found[1], found[1]) if found else ""
    if found is None or (engine is not None and name not in given):
        return message
    value = given.get(name)
    said = f" {value[int(found[2])]}" if found[2] and value else ""
    says = message[found.end() :] if engine else _ENGINE_KEY.sub(_named, message[found.end() :])
    return f"{_option(name)}{said}: {f'{found[3]}: ' if found[3] else ''}{says}"


def _named(key: re.Match[str]) -> str:
    return _option(_OPTION_OF.get(key[1], key[1]))


def _speculative(text: str) -> dict[str, Any] | None:
    """Return what a scenario says of a method, or of a number of tokens that multi-token prediction drafts."""
    if text.isdecimal():
        return {"method": "mtp", "num_speculative_tokens": int(text)} if int(text) else None
    if text not in METHODS:
        raise click.UsageError(f"--speculative {text}: no method; there are {', '.join(METHODS)}, or a number")
    return {"method": "ngram" if text == "ngram" else "mtp"}


def _group(text: str) -> dict[str, Any]:
    """Return a group of `mamba,layers=3` as a scenario has it."""
    kind, *keys = (part.strip() for part in text.split(","))
    found: dict[str, Any] = {"kind": kind}
    for key in keys:
        name, equals, value = key.partition("=")
        if name == "draft" and not equals:
            found[name] = True
        elif value.isdecimal():
            found[name] = int(value)
        else:
            raise click.UsageError(f"--group {text}: {key!r} is not KEY=TOKENS; as in mamba,layers=3,block_size=1600")
    return found


def _option(name: str) -> str:
    return "--group" if name == "groups" else "--" + name.replace("_", "-")
