"""The way out: sidecar, file, collector, spool."""

import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from analyzers.doctor.checks import PROBLEM, Check, guarded, ok, problem, warning
from otel_cache.config import EXPORT, OUT, PREFIX, SOCKET, SOCKET_UIDS, SPOOL, STEP_SHARE, read_config
from otel_cache.errors import UsageError
from otel_cache.package import VERSION
from otel_cache.sidecar.status import Status, query_status

COLLECTOR_SECONDS = 5
"""What a collector may take to answer, where the environment does not say."""
TIMEOUT = "OTEL_EXPORTER_OTLP_TIMEOUT"
EXPORTER = "OTEL_TRACES_EXPORTER"
_SETTINGS = (EXPORT, STEP_SHARE, SOCKET_UIDS)
"""What the sidecar reads besides the spool's variables: a value that is impossible keeps it from starting."""


def check_sidecar(environ: Mapping[str, str]) -> tuple[Check, Status | None]:
    """Return what is to be said of the sidecar, and how it is, where one answers."""
    from otel_cache.pipeline.destination import compare
    from otel_cache.sidecar.launch import default_socket, is_listening

    named = read_config(environ).socket
    try:
        path = named or default_socket()
    except UsageError as error:
        return problem("sidecar", str(error), f"or name a socket in {SOCKET}", unrecorded=True), None
    if not is_listening(path):
        if named is None:
            return ok("sidecar", f"none yet on {path}: the first record starts one"), None
        todo = f"run: otel-cache sidecar --socket {path}"
        says = f"none listens on {path}, and the plugin starts none on a named socket"
        return problem("sidecar", says, todo, unrecorded=True), None
    try:
        status = query_status(path)
    except UsageError as error:
        return problem("sidecar", str(error), "end what listens there; the versions may be too far apart"), None
    return _sidecar(path, status, compare(read_config(environ), status)), status


def _sidecar(path: str, status: Status, difference: str) -> Check:
    text = f"version {status.version}, process {status.pid}, listens on {path}; {status.processes} processes connected"
    lost = {
        "records never arrived": status.missing,
        "records could not be read": status.malformed,
        "records could not be made spans": status.failed,
        "spans could not be written": status.spans_unwritten,
        "spans were lost on their way to the collector": status.spans_lost,
        "connections were refused": status.refused,
    }
    said = ", ".join(f"{count} {what}" for what, count in lost.items() if count)
    if said:
        return warning("sidecar", f"{text}; {said}", "run: otel-cache sidecar --status")
    if status.version != VERSION:
        return warning("sidecar", f"{text}; this is {VERSION}", "restart it, so that both are of one version")
    if difference:
        todo = f"end what uses it: it leaves 10 seconds later; or name a socket of its own in {SOCKET}"
        return warning("sidecar", f"{text}; it {difference}", todo)
    return ok("sidecar", text)


def check_settings(environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield each of the sidecar's variables that has an impossible value, by its name without the prefix."""
    from otel_cache.sidecar.settings import read_settings

    for variable in _SETTINGS:
        try:
            read_settings({variable: environ.get(variable, "")})
        except UsageError as error:
            name = variable.removeprefix(PREFIX).lower().replace("_", " ")
            yield problem(name, f"{error}; no sidecar starts with it", "correct the variable", unrecorded=True)


def check_file(environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield whether the evidence's file can be written, where one is named."""
    if (out := read_config(environ).out) is None:
        return
    path = Path(out).absolute()
    if path.is_dir():
        todo = f"name a file in it, such as {path / 'capture.jsonl'}"
        yield problem("file", f"{OUT}={out} is a folder", todo, unrecorded=True)
    elif not path.parent.is_dir():
        yield problem("file", f"{OUT}={out}: there is no folder {path.parent}", "make it", unrecorded=True)
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        yield problem("file", f"{OUT}={out} cannot be written", "give this user access to it", unrecorded=True)
    else:
        yield ok("file", f"{path} can be written")


def check_collector(environ: Mapping[str, str], status: Status | None) -> Check:
    """Send the collector an empty request, as the sidecar would send spans.

    That is the one that the environment names, else the one that the running sidecar exports to, else OTLP's default:
    that nothing listens there is no more than a warning, since nobody said that something does.
    """
    from otel_cache.sidecar.exporters import ENDPOINT, TRACES_ENDPOINT, Outcome, make_exporter, wants_export

    named = any(os.environ.get(name) for name in (TRACES_ENDPOINT, ENDPOINT))
    if status is not None and not status.endpoint and not named:
        into = f" but written to {status.file}" if status.file else ""
        return ok("collector", f"nothing is exported{into}: the running sidecar has no endpoint")
    running = status.endpoint if status is not None and not named else None
    out = read_config(environ).out
    exporter_named = environ.get(EXPORTER, "")
    if running is None and out is None and exporter_named.strip().lower() == "none":
        says = f"{EXPORTER}={exporter_named} turns the export off, and no file is named: spans go nowhere"
        return warning("collector", says, f"unset {EXPORTER}, or name a file in {OUT}", unrecorded=True)
    if running is None and not wants_export(None, out):
        return ok("collector", "nothing is exported: a file is named and no endpoint, or export is turned off")
    os.environ.setdefault(TIMEOUT, str(COLLECTOR_SECONDS))
    # What the exporter says of each try is in its answer.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        exporter, endpoint = make_exporter(running)
    except UsageError as error:
        return problem("collector", str(error), "correct the OTEL_EXPORTER_OTLP_ variables", unrecorded=True)
    try:
        answer = exporter.send(b"", 0)
    finally:
        exporter.shutdown()
    todo = "start a collector there, or name yours in OTEL_EXPORTER_OTLP_ENDPOINT"
    if answer.outcome is Outcome.AWAY and not named and running is None:
        says = f"no endpoint is named, and at the default, {endpoint}, none answers: {answer.error}"
        return warning("collector", says, f"{todo}, or a file in {OUT}")
    if answer.outcome is Outcome.AWAY:
        return problem("collector", f"{endpoint} does not answer: {answer.error}", todo)
    if answer.outcome is Outcome.REFUSED:
        todo = "check OTEL_EXPORTER_OTLP_PROTOCOL, _HEADERS and _CERTIFICATE"
        return problem("collector", f"{endpoint} refuses what is sent: {answer.error}", todo)
    if status is not None and status.export_failed > status.export_succeeded:
        says = f"{endpoint} answers, but the running sidecar's last export to {status.endpoint} failed"
        return warning("collector", f"{says}: {status.export_error}", "compare the sidecar's environment with this one")
    return ok("collector", f"{endpoint} answers")


def check_spool(environ: Mapping[str, str]) -> Check:
    """Return whether spans can wait on disk while the collector is away."""
    from otel_cache.sidecar.exporters import wants_export
    from otel_cache.sidecar.settings import read_settings

    try:
        settings = read_settings({name: value for name, value in environ.items() if name not in _SETTINGS})
    except UsageError as error:
        return problem("spool", str(error), "correct the variable", unrecorded=True)
    if settings.spool is None:
        return ok("spool", "none: while the collector is away spans wait in memory alone")
    path, limit = Path(settings.spool), settings.spool_bytes
    check = guarded("spool", lambda: _spool(path, limit))
    # Without the default folder a sidecar goes on in memory; a named one has to be there.
    exports = wants_export(None, read_config(environ).out)
    return replace(check, unrecorded=check.level == PROBLEM and settings.spool_named and exports)


def _spool(path: Path, limit: int) -> Check:
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        return problem("spool", f"{existing} is not a folder", f"name another one in {SPOOL}")
    if not os.access(existing, os.W_OK | os.X_OK):
        return problem("spool", f"{path} cannot be written: {existing} belongs to others", f"name another in {SPOOL}")
    free = shutil.disk_usage(existing).free
    text = f"{path}, at most {limit >> 20} MiB"
    if free < limit:
        return warning(
            "spool", f"{text}, of which {free >> 20} MiB are free", f"free space, or set {SPOOL}_BYTES lower"
        )
    mode = stat.S_IMODE(existing.stat().st_mode)
    if existing == path and mode & 0o022:
        return warning("spool", f"{text}; others may write to it (mode {mode:03o})", f"chmod 700 {path}")
    return ok("spool", text if existing == path else f"{text}; it will be made")
