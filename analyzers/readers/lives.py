"""The lives of replicas that a capture's resources name."""

import json
from collections.abc import Mapping
from typing import Any

from analyzers.model import Life
from analyzers.readers.attributes import text
from analyzers.readers.tally import SpanError
from otel_cache.semconv.names import REPLICA_ID

INSTANCE_ID = "service.instance.id"


class Lives:
    """Gives each (replica, instance) a handle while reading, and its index once all is read."""

    def __init__(self) -> None:
        self._handles: dict[tuple[str, str], int] = {}
        self._variants: list[dict[str, Mapping[str, Any]]] = []
        self._starts: dict[int, int] = {}

    def find(self, attributes: Mapping[str, Any]) -> int:
        """Return the handle of the life that resource attributes name.

        Raises:
            SpanError: they do not name a replica and an instance.

        """
        replica, instance = text(attributes, REPLICA_ID), text(attributes, INSTANCE_ID)
        if not replica or not instance:
            raise SpanError(f"{INSTANCE_ID if replica else REPLICA_ID} is empty")
        handle = self._handles.setdefault((replica, instance), len(self._handles))
        if handle == len(self._variants):
            self._variants.append({})
        self._variants[handle][json.dumps(attributes, sort_keys=True)] = attributes
        return handle

    def saw(self, handle: int, start: int) -> None:
        """Note that a span of this life began at `start`."""
        self._starts[handle] = min(start, self._starts.get(handle, start))

    def index(self) -> tuple[list[Life], dict[int, int]]:
        """Return the lives that have spans, ordered by replica and first start, and the index of each handle."""
        names = {handle: name for name, handle in self._handles.items()}
        ordered = sorted(self._starts, key=lambda handle: (names[handle][0], self._starts[handle], names[handle][1]))
        lives = [Life(index, *names[handle], self._merged(handle)) for index, handle in enumerate(ordered)]
        return lives, {handle: index for index, handle in enumerate(ordered)}

    def _merged(self, handle: int) -> dict[str, Any]:
        """Join the resources of one life, in an order that does not depend on the order of reading."""
        merged: dict[str, Any] = {}
        for _, attributes in sorted(self._variants[handle].items()):
            merged.update(attributes)
        return dict(sorted(merged.items()))
