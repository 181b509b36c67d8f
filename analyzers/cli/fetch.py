"""`otel-cache fetch`: spans out of a tracing back end, into a capture."""

import os
from contextlib import closing
from pathlib import Path
from typing import Literal

import click

from analyzers.cli.completion import FILE
from analyzers.cli.files import output_option
from analyzers.cli.says import StatusLine, quiet_option, say, say_notes

TOKEN = "OTEL_CACHE_BEARER_TOKEN"
LIMITS = {"jaeger": 200, "tempo": 1000}
TENANT_HEADERS = {"jaeger": "x-tenant", "tempo": "X-Scope-OrgID"}


@click.command("fetch")
@click.argument("backend", type=click.Choice(["jaeger", "tempo"]))
@click.argument("url")
@output_option("--out", required=True, help="Write the capture there, as OTLP JSON lines; - for stdout.")
@click.option(
    "--since", metavar="TIME", default="1h", show_default=True,
    help="Spans from then on: so long ago (90s, 10m, 2h, 7d), or ISO 8601.",
)  # fmt: skip
@click.option("--until", metavar="TIME", help="Spans up to then; now by default.")
@click.option(
    "--service", "services", metavar="NAME", multiple=True,
    help="Only this service; may be given more than once. By default every service with spans of otel-cache.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), metavar="N",
    help="Traces to ask for at once: 200 of Jaeger, 1000 of Tempo. Where a window has more, it is halved.",
)  # fmt: skip
@click.option(
    "--api", type=click.Choice(["auto", "v3", "json"]), default="auto", show_default=True,
    help="Jaeger's API: /api/v3, the older JSON, or the first of them that answers.",
)  # fmt: skip
@click.option("--tenant", metavar="ID", help="Tenant to ask for.")
@click.option(
    "--bearer-token-file", metavar="FILE", type=FILE,
    help=f"File with the bearer token; without it the variable {TOKEN} counts.",
)  # fmt: skip
@click.option("--ca-file", metavar="FILE", type=FILE, help="Certificates to verify the back end with.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
    help="How long the back end may be silent.",
)  # fmt: skip
@quiet_option
def command(
    backend: Literal["jaeger", "tempo"],
    url: str,
    out: str,
    since: str,
    until: str | None,
    services: tuple[str, ...],
    limit: int | None,
    api: Literal["auto", "v3", "json"],
    tenant: str | None,
    bearer_token_file: str | None,
    ca_file: str | None,
    timeout: float,
) -> None:
    """Fetch the spans of otel-cache that a tracing back end holds, for `otel-cache analyze`.

    URL is that of the query API: Jaeger's port 16686, Tempo's 3200. Whole traces are fetched, with the spans of other
    programs in them. FILE is written when everything is there; what ends the command early leaves nothing behind.

    \b
    Example:
      otel-cache fetch jaeger http://localhost:16686 --since 30m --out spans.jsonl
      otel-cache fetch tempo https://tempo.example --service vllm --bearer-token-file token --out spans.jsonl
    """
    import time

    from analyzers.fetch.client import Access, Client
    from analyzers.fetch.jaeger import Jaeger
    from analyzers.fetch.run import Backend, fetch
    from analyzers.fetch.tempo import Tempo
    from analyzers.fetch.windows import parse_window

    if backend == "tempo" and api != "auto":
        raise click.UsageError("--api is for Jaeger: Tempo is asked by the newest of its APIs that it has")
    if "" in (url, out, *services):
        raise click.UsageError("URL, --out or --service is empty: is a variable unset?")
    window = parse_window(since, until, time.time_ns())
    headers = {TENANT_HEADERS[backend]: tenant} if tenant else {}
    client = Client(url, Access(_token(bearer_token_file), headers, ca_file, timeout))
    asked: Backend = Jaeger(client, api) if backend == "jaeger" else Tempo(client)
    with closing(client), StatusLine() as line:

        def progress(spans: int, traces: int, share: float) -> None:
            line.show(f"{share:4.0%}  {spans:,} spans of otel_cache in {traces:,} traces")

        fetched = fetch(asked, list(dict.fromkeys(services)), window, limit or LIMITS[backend], out, progress)
    say_notes(fetched.notes, more="")
    others = f", and {fetched.foreign:,} of other programs," if fetched.foreign else ""
    say(f"{fetched.spans:,} spans of otel_cache{others} in {fetched.traces:,} traces from {window} to {out}")


def _token(file: str | None) -> str | None:
    """Return the bearer token: that in the file, else that of the environment."""
    from otel_cache.errors import UsageError

    if file is None:
        return os.environ.get(TOKEN, "").strip() or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--bearer-token-file {file}: cannot be read ({getattr(error, 'strerror', error)})") from error
    if not token:
        raise UsageError(f"--bearer-token-file {file}: empty")
    return token
