"""What a replica's spans have in common: its resource, and the settings that span building needs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    TELEMETRY_SDK_LANGUAGE,
    TELEMETRY_SDK_NAME,
    TELEMETRY_SDK_VERSION,
    OTELResourceDetector,
    Resource,
)
from opentelemetry.sdk.version import __version__ as sdk_version

from otel_cache.semconv import names

DEFAULT_SERVICE_NAME = "vllm"


class ReplicaResource(Resource):
    """A resource that is compared by identity: the SDK's own hash writes all attributes as JSON, for every span.

    Attributes:
        json: the resource as OTLP JSON, once it was written for the first time; `protobuf`: as a field of OTLP.

    """

    json: str | None = None
    protobuf: bytes | None = None

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this very object."""
        return self is other


@dataclass(frozen=True)
class Settings:
    """A replica's settings as far as spans are built from them; lengths in tokens, 0 or empty where unknown."""

    hash_block: int
    alignment: int
    kinds: tuple[str, ...]
    block_sizes: tuple[int, ...]

    def kind(self, group: int) -> str:
        """Return the kind of a group, "" where it is not known."""
        return self.kinds[group] if 0 <= group < len(self.kinds) else ""

    def block_size(self, group: int) -> int:
        """Return the block size of a group in tokens, 0 where it is not known."""
        return self.block_sizes[group] if 0 <= group < len(self.block_sizes) else 0


def build_resource(process: str, replica: int, attributes: Mapping[str, Any]) -> ReplicaResource:
    """Return the resource of one life of a replica.

    `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` of the sidecar's environment count; what the replica itself
    says wins over them.
    """
    detected = OTELResourceDetector().detect().attributes
    merged: dict[str, Any] = {
        TELEMETRY_SDK_LANGUAGE: "python",
        TELEMETRY_SDK_NAME: "opentelemetry",
        TELEMETRY_SDK_VERSION: sdk_version,
        SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME,
        **detected,
        **{key: value for key, value in attributes.items() if value is not None},
        SERVICE_INSTANCE_ID: f"{process}-{replica}",
    }
    return ReplicaResource(merged)


def read_settings(attributes: Mapping[str, Any]) -> Settings:
    """Read what span building needs from a replica's attributes; what is missing or of another type is unknown."""
    return Settings(
        hash_block=_number(attributes.get(names.HASH_BLOCK_SIZE)),
        alignment=_number(attributes.get(names.HIT_ALIGNMENT)),
        kinds=_sequence(attributes.get(names.GROUPS_KIND), str),
        block_sizes=_sequence(attributes.get(names.GROUPS_BLOCK_SIZE), int),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _sequence(value: object, kind: type[Any]) -> tuple[Any, ...]:
    if isinstance(value, list | tuple) and all(isinstance(element, kind) for element in value):
        return tuple(value)
    return ()
