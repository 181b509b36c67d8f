"""`otel-cache sidecar`: run the process that receives, writes and exports."""

import click

from analyzers.cli.completion import FILE
from analyzers.cli.says import is_quiet, quiet_option


@click.command("sidecar")
@click.option("--socket", metavar="PATH", type=FILE, help="Unix socket to listen on; by default this user's own.")
@click.option(
    "--out", metavar="FILE", type=FILE, help="Write every span there: Parquet if it ends in .parquet, else OTLP JSON."
)
@click.option("--append", is_flag=True, help="Go on after what FILE holds instead of replacing it.")
@click.option("--endpoint", metavar="URL", help="Export by OTLP to this endpoint.")
@click.option(
    "--exit-when-idle",
    type=click.FloatRange(min=0, clamp=False),
    metavar="SECONDS",
    help="Leave so long after the last connection closed.",
)
@click.option(
    "--status", is_flag=True, help="Say how the sidecar on the socket is, and leave. Exit code 1: none listens."
)
@quiet_option
def command(
    socket: str | None, out: str | None, append: bool, endpoint: str | None, exit_when_idle: float | None, status: bool
) -> None:
    """Receive records from vLLM's processes, write the evidence and export spans.

    It runs until SIGTERM or Ctrl-C. Without --out and without an endpoint, here or in OTEL_EXPORTER_OTLP_ENDPOINT, it
    exports to localhost:4317.

    \b
    Example:
      otel-cache sidecar --socket /run/otel-cache/sidecar.sock --endpoint http://collector:4317
    """
    import os
    import sys

    from otel_cache.sidecar.launch import default_socket

    if "" in (socket, out, endpoint):
        raise click.UsageError("--socket, --out or --endpoint is empty: is a variable unset?")
    if status:
        _print_status(socket or default_socket())
        return
    given = {"--out": out, "--endpoint": endpoint, "--exit-when-idle": exit_when_idle}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    options += ["--append"] if append else []
    options += ["--quiet"] if is_quiet() else []
    # -P: what lies in the working folder must not take the place of a module.
    module = [sys.executable, "-P", "-m", "otel_cache.sidecar", "--socket", socket or default_socket()]
    os.execv(sys.executable, [*module, *options])


def _print_status(socket: str) -> None:
    import sys

    from otel_cache.errors import UsageError
    from otel_cache.sidecar.status import describe, query_status

    try:
        found = query_status(socket)
    except UsageError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    click.echo(describe(found))
