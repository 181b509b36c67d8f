"""All checks, in the order in which things have to work."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from analyzers.doctor import context, environment, key, sampling, servers, vllm, ways
from analyzers.doctor.checks import Check, guarded
from otel_cache.sidecar.status import Status


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
    for check in _outputs(status):
        # What keeps a sidecar from starting is no hindrance to one that runs.
        yield check if status is None else replace(check, unrecorded=False)


def _outputs(status: Status | None) -> Iterator[Check]:
    yield from ways.check_settings(os.environ)
    yield from ways.check_file(os.environ)
    yield ways.check_collector(os.environ, status)
    yield sampling.check_sampling(os.environ)
    yield ways.check_spool(os.environ)
