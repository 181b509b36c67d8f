"""The lives of replicas that a capture's resources name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.model import Life
from analyzers.readers.attributes import text
from analyzers.readers.spans import WORKER
from analyzers.readers.tally import SpanError
from otel_cache.semconv.names import COLLECTOR_SAMPLER, REPLICA_ID, SAMPLER, WORKER_RANK

INSTANCE_ID = "service.instance.id"
_SAMPLERS = {SAMPLER, COLLECTOR_SAMPLER}


@dataclass
class _Resource:
    """A resource as some spans carry it; `start` is the first of those spans, in ns, `written` its sorted JSON."""

    life: tuple[str, str]
    written: str
    attributes: Mapping[str, Any]
    spans: int = 0
    start: int = 0


class Lives:
    """Gives each resource a handle while reading, and the index of its life once all is read."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}
        self._resources: list[_Resource] = []
        self._sampled: set[tuple[str, str]] = set()
        """Lives with spans of which no copy came but by way of a sampler."""

    def find(self, attributes: Mapping[str, Any]) -> int:
        """Return the handle of a resource; `WORKER` for that of a worker.

        Raises:
            SpanError: it does not name a replica and an instance.

        """
        if WORKER_RANK in attributes:
            return WORKER
        replica, instance = text(attributes, REPLICA_ID), text(attributes, INSTANCE_ID)
        if not replica or not instance:
            raise SpanError(f"{INSTANCE_ID if replica else REPLICA_ID} is empty")
        written = json.dumps(attributes, sort_keys=True)
        handle = self._handles.setdefault(written, len(self._handles))
        if handle == len(self._resources):
            self._resources.append(_Resource((replica, instance), written, attributes))
        return handle

    def ranks(self) -> list[int]:
        """Return the place of each handle's resource in an order that does not depend on that of reading."""
        places = sorted(range(len(self._resources)), key=lambda at: self._resources[at].written)
        return sorted(range(len(places)), key=places.__getitem__)

    def saw(self, handle: int, spans: int, start: int) -> None:
        """Count the spans of this resource, the first of which began at `start`."""
        resource = self._resources[handle]
        resource.start = min(start, resource.start) if resource.spans else start
        resource.spans += spans

    def sampling(self) -> list[int]:
        """Return the handles of resources whose spans came by way of a sampler."""
        return [at for at, each in enumerate(self._resources) if not _SAMPLERS.isdisjoint(each.attributes)]

    def saw_sampled(self, handle: int) -> None:
        """Note that of a span with this resource no copy came but by way of a sampler."""
        self._sampled.add(self._resources[handle].life)

    def index(self) -> tuple[list[Life], dict[int, int]]:
        """Return the lives that have spans, ordered by replica and first start, and the index of each handle."""
        by_life: dict[tuple[str, str], list[_Resource]] = {}
        for resource in self._resources:
            if resource.spans:
                by_life.setdefault(resource.life, []).append(resource)

        def order(life: tuple[str, str]) -> tuple[str, int, str]:
            return life[0], min(resource.start for resource in by_life[life]), life[1]

        lives = [
            Life(index, *life, _joined(by_life[life], life in self._sampled))
            for index, life in enumerate(sorted(by_life, key=order))
        ]
        of_life = {(life.replica, life.instance): life.index for life in lives}
        handles = enumerate(self._resources)
        return lives, {handle: of_life[resource.life] for handle, resource in handles if resource.spans}


def _joined(resources: list[_Resource], sampled: bool) -> dict[str, Any]:
    """Join the resources of one life: what most spans say holds, so that one damaged line does not change a setting.

    Where all spans of the life came without a sampler as well, what was sampled is but a copy: the life names none.
    """
    joined: dict[str, Any] = {}
    for resource in sorted(resources, key=lambda each: (-each.spans, each.written)):
        joined = {**resource.attributes, **joined}
    return {key: value for key, value in sorted(joined.items()) if sampled or key not in _SAMPLERS}
