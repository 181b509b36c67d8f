"""A replica's settings, typed, from the resource attributes that its spans carry."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from otel_cache.errors import CaptureError
from otel_cache.semconv import names

DENSE_KINDS = frozenset({names.KIND_FULL_ATTENTION})
KNOWN_KINDS = DENSE_KINDS | {names.KIND_MAMBA, names.KIND_SLIDING_WINDOW, names.KIND_CHUNKED_LOCAL}


@dataclass(frozen=True)
class Group:
    """A KV-cache group: `block_size` and `window` (0: none) in tokens.

    vLLM may have it `flagged` for speculation; it `drops` a block only where its kind does.
    """

    index: int
    kind: str
    block_size: int
    window: int
    flagged: bool
    drops: bool
    fine_grained: bool

    @property
    def dense(self) -> bool:
        """Whether the group keeps every block of a prefix."""
        return self.kind in DENSE_KINDS


@dataclass(frozen=True)
class Settings:
    """What prediction needs of a replica. Lengths in tokens.

    Attributes:
        groups: by index.
        order: the groups that are looked up together, in the order of the lookup.
        alignment: the hit grid.
        hash_block: tokens between fingerprints.
        lookahead: tokens beyond a position that its key covers.
        block_beyond: a group that drops a block may look one block past the hit limit.
        retention: "dense", or the retention interval.

    """

    groups: tuple[Group, ...]
    order: tuple[tuple[int, ...], ...]
    alignment: int
    hash_block: int
    scheduler_block: int
    lookahead: int
    partial_hits: bool
    block_beyond: bool
    prefix_caching: bool
    retention: str
    version: str
    speculative_method: str
    max_batched_tokens: int
    fingerprint_key_id: str

    @property
    def dense_groups(self) -> tuple[Group, ...]:
        """The groups that keep every block of a prefix."""
        return tuple(group for group in self.groups if group.dense)

    @property
    def sparse_groups(self) -> tuple[Group, ...]:
        """The groups that keep states at some boundaries only, as far as the lookup asks them."""
        return tuple(self.groups[i] for ids in self.order for i in ids if not self.groups[i].dense)

    @property
    def predictable(self) -> bool:
        """Whether the rules of every group that the lookup asks are known."""
        return all(self.groups[i].kind in KNOWN_KINDS for ids in self.order for i in ids)

    @property
    def minimum(self) -> int:
        """The shortest prefix that can be cached at all, in tokens."""
        sizes = [self.groups[i].block_size for ids in self.order for i in ids]
        return self.alignment if self.partial_hits else lcm(self.alignment, *sizes)

    @property
    def version_tuple(self) -> tuple[int, int]:
        """Major and minor version of vLLM; (0, 0) where it does not read as one."""
        try:
            major, minor = self.version.split(".")[:2]
            return int(major), int(minor)
        except ValueError:
            return 0, 0


def read_settings(attributes: Mapping[str, Any], where: str) -> Settings:
    """Return the settings that the resource `attributes` of `where` give.

    Raises:
        CaptureError: an attribute that prediction needs is missing or is not of its type.

    """
    try:
        kinds = list(attributes[names.GROUPS_KIND])
        groups = tuple(
            Group(index, str(kind), int(size), int(window), bool(flagged), bool(drops), bool(fine))
            for index, (kind, size, window, flagged, drops, fine) in enumerate(
                zip(
                    kinds,
                    attributes[names.GROUPS_BLOCK_SIZE],
                    attributes[names.GROUPS_WINDOW],
                    attributes[names.GROUPS_FLAGGED],
                    attributes[names.GROUPS_DROPS],
                    attributes[names.GROUPS_FINE_GRAINED],
                    strict=True,
                )
            )
        )
        order = tuple(tuple(int(i) for i in ids.split(",")) for ids in attributes[names.GROUPS_LOOKUP_ORDER])
        settings = Settings(
            groups=groups,
            order=order,
            alignment=int(attributes[names.HIT_ALIGNMENT]),
            hash_block=int(attributes[names.HASH_BLOCK_SIZE]),
            scheduler_block=int(attributes[names.SCHEDULER_BLOCK_SIZE]),
            lookahead=int(attributes[names.HASH_LOOKAHEAD_TOKENS]),
            partial_hits=bool(attributes[names.PARTIAL_HITS]),
            block_beyond=attributes[names.PROOF_LIMIT] == names.PROOF_BLOCK_BEYOND,
            prefix_caching=bool(attributes[names.PREFIX_CACHING]),
            retention=str(attributes[names.RETENTION_INTERVAL]),
            version=str(attributes.get(names.VLLM_VERSION, "")),
            speculative_method=str(attributes.get(names.SPECULATIVE_METHOD, "")),
            max_batched_tokens=int(attributes.get(names.MAX_BATCHED_TOKENS, 0)),
            fingerprint_key_id=str(attributes.get(names.FINGERPRINT_KEY_ID, "")),
        )
        sizes = [settings.alignment, settings.hash_block, *(group.block_size for group in groups)]
        if min(sizes) < 1 or any(not 0 <= i < len(groups) for ids in order for i in ids):
            raise ValueError("a block size below 1, or a group that does not exist")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaptureError(
            f"the resource of {where} lacks what the analysis needs ({type(error).__name__}: {error}); "
            "was the capture cut, or written by another program?"
        ) from error
    return settings
