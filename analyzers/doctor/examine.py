"""All checks, in the order in which things have to work."""

import os
from collections.abc import Iterator
from pathlib import Path

from analyzers.doctor import context, environment, key, servers, vllm, ways
from analyzers.doctor.checks import Check, guarded


def examine(folder: Path | None) -> Iterator[Check]:
    """Yield the findings for the vLLM in `folder`, or the installed one, in the environment of this process.

    Raises:
        LabError: `folder` holds no vLLM.

    """
    found = vllm.look(folder)
    first, *others = environment.check_environment(os.environ, found.hooks)
    yield first
    yield from vllm.check_vllm(found)
    yield from others
    yield guarded(key.NAME, lambda: key.check_key(os.environ))
    sidecar, status = ways.check_sidecar(os.environ)
    yield context.check_context(status, list(servers.running_servers()))
    yield sidecar
    yield from ways.check_file(os.environ)
    yield ways.check_collector(os.environ, status)
    yield ways.check_spool(os.environ)
