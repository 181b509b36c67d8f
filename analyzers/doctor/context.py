"""Whether the caller's trace context reaches the requests' spans."""

from collections.abc import Sequence

from analyzers.doctor.checks import Check, ok, warning
from analyzers.doctor.servers import TRACING, Server
from otel_cache.sidecar.status import Status

NAME = "trace context"
RULE = f"vLLM drops a request's traceparent unless it is started with {TRACING}"


def check_context(status: Status | None, servers: Sequence[Server]) -> Check:
    """Return what the sidecar's counts and the command lines of the running servers tell."""
    untraced = [server.pid for server in servers if server.traced is False]
    todo = f"start vLLM with {TRACING} URL"
    if untraced:
        those = (
            f"process {untraced[0]} was" if len(untraced) == 1 else f"processes {', '.join(map(str, untraced))} were"
        )
        return warning(NAME, f"{those} started without {TRACING}: a request's traceparent is dropped there", todo)
    if status is not None and status.requests:
        share = f"{status.requests_traced} of {status.requests} requests came with their caller's"
        if status.requests_traced:
            return ok(NAME, share)
        return warning(NAME, f"{share}: {RULE}, and callers must send one", todo)
    if any(server.traced for server in servers):
        return ok(NAME, f"vLLM was started with {TRACING}; no request yet")
    return ok(NAME, f"nothing is known yet, for want of requests; {RULE}")
