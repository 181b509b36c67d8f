"""A replica's settings, typed, from the resource attributes that its spans carry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
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

    @cached_property
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
        split_block: chunks of a model with Mamba layers end on its multiples.
        retention: "dense", or the retention interval.
        shared_prefix_checkpoint: Mamba groups keep a state where a lookup saw a shared prefix end, inside a block too.
        num_blocks: size of the block pool; replicas that differ in it alone have the same configuration.

    """

    groups: tuple[Group, ...]
    order: tuple[tuple[int, ...], ...]
    alignment: int
    hash_block: int
    scheduler_block: int
    split_block: int
    lookahead: int
    partial_hits: bool
    block_beyond: bool
    prefix_caching: bool
    retention: str
    version: str
    speculative_method: str
    max_batched_tokens: int
    fingerprint_key_id: str
    model: str = ""
    speculative_tokens: int = 0
    shared_prefix_checkpoint: bool = False
    num_blocks: int = field(default=0, compare=False)

    @cached_property
    def dense_groups(self) -> tuple[Group, ...]:
        """The groups that keep every block of a prefix."""
        return tuple(group for group in self.groups if group.dense)

    @cached_property
    def lookup_sets(self) -> tuple[tuple[Group, ...], ...]:
        """The groups of each entry of `order`."""
        return tuple(tuple(self.groups[i] for i in ids) for ids in self.order)

    @cached_property
    def asked(self) -> frozenset[int]:
        """The groups that the lookup asks, by index."""
        return frozenset(index for ids in self.order for index in ids)

    @cached_property
    def sparse_groups(self) -> tuple[Group, ...]:
        """The groups that keep states at some boundaries only, as far as the lookup asks them."""
        return tuple(self.groups[i] for ids in self.order for i in ids if not self.groups[i].dense)

    @cached_property
    def predictable(self) -> bool:
        """Whether the rules of every group that the lookup asks are known."""
        return all(self.groups[i].kind in KNOWN_KINDS for ids in self.order for i in ids)

    @cached_property
    def one_pass(self) -> bool:
        """Whether the lookup asks every group once: there are two entries in its order, and the first is dense."""
        return len(self.order) == 2 and self.groups[self.order[0][0]].dense

    @cached_property
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


MAX_TOKENS = 2**31 - 1
"""No block, window or limit of a model is larger; a number beyond it is damage."""


class _Attributes:
    """Resource attributes of `where`, read strictly: an attribute that is missing or of another type is an error."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def integer(self, name: str, least: int = 0, default: int | None = None) -> int:
        return self._integer(name, self._get(name, default), least)

    def integers(self, name: str, least: int = 0) -> list[int]:
        return [self._integer(name, value, least) for value in self._list(name)]

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._flag(name, self._get(name, default))

    def flags(self, name: str) -> list[bool]:
        return [self._flag(name, value) for value in self._list(name)]

    def text(self, name: str, default: str | None = None) -> str:
        return self._text(name, self._get(name, default))

    def texts(self, name: str) -> list[str]:
        return [self._text(name, value) for value in self._list(name)]

    def fail(self, name: str, expected: str) -> CaptureError:
        """Return the error that says what is wrong with attribute `name`."""
        found = repr(self._values[name])[:60] if name in self._values else "it is missing"
        return CaptureError(
            f"the resource of {self._where}: {name} is not {expected} ({found}); "
            "was the capture cut, or written by another program?"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is None:
            raise self.fail(name, "there")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._get(name, None)
        if not isinstance(value, list | tuple):
            raise self.fail(name, "a list")
        return list(value)

    def _integer(self, name: str, value: Any, least: int) -> int:
        # bool is an int to Python, not to OpenTelemetry.
        if type(value) is not int or not least <= value <= MAX_TOKENS:
            raise self.fail(name, f"a number from {least} to {MAX_TOKENS}")
        return value

    def _flag(self, name: str, value: Any) -> bool:
        if type(value) is not bool:
            raise self.fail(name, "true or false")
        return value

    def _text(self, name: str, value: Any) -> str:
        if type(value) is not str:
            raise self.fail(name, "text")
        return value


def read_settings(attributes: Mapping[str, Any], where: str) -> Settings:
    """Return the settings that the resource `attributes` of `where` give.

    Raises:
        CaptureError: an attribute that prediction needs is missing or is not of its type; names it.

    """
    read = _Attributes(attributes, where)
    groups = _read_groups(read)
    order = tuple(_read_ids(read, ids, len(groups)) for ids in read.texts(names.GROUPS_LOOKUP_ORDER))
    settings = Settings(
        groups=groups,
        order=order,
        alignment=read.integer(names.HIT_ALIGNMENT, 1),
        hash_block=read.integer(names.HASH_BLOCK_SIZE, 1),
        scheduler_block=read.integer(names.SCHEDULER_BLOCK_SIZE, 1),
        split_block=read.integer(names.SPLIT_BLOCK_SIZE, 1, min((group.block_size for group in groups), default=1)),
        lookahead=read.integer(names.HASH_LOOKAHEAD_TOKENS),
        partial_hits=read.flag(names.PARTIAL_HITS),
        block_beyond=read.text(names.PROOF_LIMIT) == names.PROOF_BLOCK_BEYOND,
        prefix_caching=read.flag(names.PREFIX_CACHING),
        retention=read.text(names.RETENTION_INTERVAL),
        version=read.text(names.VLLM_VERSION, ""),
        speculative_method=read.text(names.SPECULATIVE_METHOD, ""),
        max_batched_tokens=read.integer(names.MAX_BATCHED_TOKENS, default=0),
        fingerprint_key_id=read.text(names.FINGERPRINT_KEY_ID, ""),
        model=read.text(names.MODEL, ""),
        speculative_tokens=read.integer(names.SPECULATIVE_TOKENS, default=0),
        shared_prefix_checkpoint=read.flag(names.SHARED_PREFIX_CHECKPOINT, False),
        num_blocks=read.integer(names.NUM_BLOCKS, default=0),
    )
    if any(group.block_size % settings.hash_block for group in groups):
        raise read.fail(names.GROUPS_BLOCK_SIZE, f"made of multiples of {names.HASH_BLOCK_SIZE}")
    return settings


def _read_groups(read: _Attributes) -> tuple[Group, ...]:
    columns = (
        read.texts(names.GROUPS_KIND),
        read.integers(names.GROUPS_BLOCK_SIZE, 1),
        read.integers(names.GROUPS_WINDOW),
        read.flags(names.GROUPS_FLAGGED),
        read.flags(names.GROUPS_DROPS),
        read.flags(names.GROUPS_FINE_GRAINED),
    )
    if len({len(column) for column in columns}) != 1:
        raise read.fail(names.GROUPS_KIND, "as long as the other lists of groups")
    return tuple(Group(index, *row) for index, row in enumerate(zip(*columns, strict=True)))


def _read_ids(read: _Attributes, ids: str, count: int) -> tuple[int, ...]:
    parts = ids.split(",")
    if not all(part.isdecimal() and int(part) < count for part in parts):
        raise read.fail(names.GROUPS_LOOKUP_ORDER, f"a list of group numbers below {count}")
    return tuple(int(part) for part in parts)
