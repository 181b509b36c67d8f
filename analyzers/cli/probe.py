"""`otel-cache probe`: asks a live server the requests that tell what its prefix cache does."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from analyzers.cli.completion import FILE
from analyzers.cli.files import write_whole
from analyzers.cli.forms import report_options
from analyzers.cli.says import is_quiet, quiet_option, say

if TYPE_CHECKING:
    from analyzers.probe.spans import Spans


@click.command("probe")
@click.argument("url", metavar="URL")
@click.option("--control", metavar="URL", help="The same model with prefix caching, without speculation.")
@click.option("--speculation-alone", metavar="URL", help="The same model with speculation, without prefix caching.")
@click.option("--plain", metavar="URL", help="The same model with neither.")
@click.option("--model", metavar="NAME", help="Name of the model; by default the first that each server lists.")
@click.option("--prompt-tokens", type=click.IntRange(2), metavar="N", help="Length of a prompt.")
@click.option("--block-size", type=click.IntRange(1), metavar="N", help="Hits can end at multiples of this.")
@click.option("--repeats", type=click.IntRange(2, 50), default=3, show_default=True, help="Repeats of each shape.")
@click.option(
    "--output-tokens", type=click.IntRange(1, 4096), default=16, show_default=True, help="Length of the answers."
)
@click.option("--spans", metavar="FILE", type=FILE, help="File that the server's sidecar writes to (OTLP JSON lines).")
@click.option(
    "--otlp-port", type=click.IntRange(0, 65535), metavar="PORT",
    help="Receive the spans of the server's sidecar by OTLP over gRPC on this port; 0: on a free one.",
)  # fmt: skip
@click.option(
    "--api-key-file", metavar="FILE", type=FILE, help="File with the server's API key; else OPENAI_API_KEY is used."
)
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True, metavar="SECONDS",
    help="How long one request may take.",
)  # fmt: skip
@click.option("--allow-traffic", is_flag=True, help="Probe the server though others use it as well.")
@report_options("text", "json", what="report")
@quiet_option
def command(
    url: str,
    control: str | None,
    speculation_alone: str | None,
    plain: str | None,
    model: str | None,
    prompt_tokens: int | None,
    block_size: int | None,
    repeats: int,
    output_tokens: int,
    spans: str | None,
    otlp_port: int | None,
    api_key_file: str | None,
    timeout: float,
    allow_traffic: bool,
    form: Literal["text", "json"],
    output: str | None,
) -> None:
    """Ask the live server at URL what its prefix cache reuses, one request after the other.

    Prompts that nobody has sent before go out cold, then again: the same prompt, one token longer, and two that leave
    it just before and just after a boundary. With the server's spans the verdict names the KV-cache group that is to
    blame. The server must be OpenAI-compatible and used by nobody else.

    \b
    Example:
      otel-cache probe http://localhost:8000 --spans spans.jsonl
      otel-cache probe http://localhost:8000 --control http://localhost:8001 --output probe.json
    """
    from analyzers.probe import json, text
    from analyzers.probe import model as roles
    from analyzers.probe.run import Request, probe

    if spans is not None and otlp_port is not None:
        raise click.UsageError("--spans and --otlp-port: give one of them")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise click.UsageError(f"--output {output}: there is no folder {Path(output).absolute().parent}")
    others = {roles.CONTROL: control, roles.SPECULATION_ALONE: speculation_alone, roles.PLAIN: plain}
    urls = {roles.PROBED: url} | {role: other for role, other in others.items() if other is not None}
    with _spans(spans, otlp_port) as source:
        report = probe(
            Request(
                urls=urls,
                model=model,
                api_key=_api_key(api_key_file),
                timeout=timeout,
                prompt_tokens=prompt_tokens,
                block_size=block_size,
                repeats=repeats,
                output_tokens=output_tokens,
                spans=source,
                allow_traffic=allow_traffic,
            ),
            _progress,
        )
    if output is not None:
        write_whole(output, json.render(report) if form == "json" else text.render(report))
    else:
        colorful = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        click.echo(json.render(report) if form == "json" else text.render(report, color=colorful), nl=False, color=True)


@contextmanager
def _spans(path: str | None, port: int | None) -> "Iterator[Spans | None]":
    """Yield where spans come: a file, or what a receiver on `port` takes while the probe runs."""
    if path is None and port is None:
        yield None
        return
    from analyzers.probe.spans import NamedSpans, Spans

    if path is not None:
        yield NamedSpans(Path(path), path)
        return
    from analyzers.probe.receiver import Receiver

    with tempfile.TemporaryDirectory(prefix="otel-cache-probe-") as folder:
        file = Path(folder) / "spans"
        receiver = Receiver(port or 0, file)
        say(f"taking spans by OTLP (gRPC) on port {receiver.port}")
        try:
            yield Spans(file, f"port {receiver.port}")
        finally:
            receiver.close()


def _api_key(path: str | None) -> str | None:
    from otel_cache.errors import UsageError

    if path is None:
        return os.environ.get("OPENAI_API_KEY") or None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path}: cannot be read ({error})") from error
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"--api-key-file {path}: holds no key, or more than one line")
    return key


def _progress(says: str) -> None:
    if sys.stderr.isatty() and not is_quiet():
        click.echo(says, err=True)
