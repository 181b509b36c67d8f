"""The engine of a capture's replicas, as the lab builds it."""

from math import gcd
from typing import Any

from analyzers.model import Capture
from analyzers.settings import Settings, read_settings
from analyzers.vllm_lab.scenario import Engine, Group, Speculative
from otel_cache.errors import LabError
from otel_cache.semconv import names

KINDS = (names.KIND_MAMBA, names.KIND_FULL_ATTENTION, names.KIND_SLIDING_WINDOW)
MAX_NUM_SEQS = 256
"""What vLLM's servers do unasked, for captures that do not say."""
MAX_MODEL_LEN = 1 << 24


def engine_of(capture: Capture) -> Engine:
    """Return the engine that all replicas of `capture` have.

    Raises:
        LabError: they differ, or have a kind of group that the lab does not build.

    """
    found = {read_settings(life.attributes, f"replica {life.replica}") for life in capture.lives}
    if len(found) > 1:
        raise LabError(
            "the replicas of the capture have different settings, and the lab builds one engine; choose a capture of "
            "one of them, or name an engine with --engine FILE"
        )
    settings = found.pop()
    attributes = capture.lives[-1].attributes
    return _engine(settings, attributes, capture)


def _engine(settings: Settings, attributes: Any, capture: Capture) -> Engine:
    strange = sorted({group.kind for group in settings.groups} - set(KINDS))
    if strange:
        raise LabError(f"the capture has groups of {', '.join(strange)}, which the lab does not build")
    if not settings.prefix_caching:
        raise LabError("prefix caching was off; name an engine with --engine FILE to see what it would have given")
    sizes = [group.block_size for group in settings.groups]
    drafts = bool(settings.speculative_method) and settings.speculative_method != "ngram"
    several = len(sizes) > 1
    sparse = bool(settings.sparse_groups)
    interval = settings.retention
    return Engine(
        groups=tuple(
            Group(
                kind=group.kind,  # type: ignore[arg-type]
                block_size=group.block_size,
                window=group.window or None,
                draft=drafts and group.drops and several,
            )
            for group in settings.groups
        ),
        block_size=min(sizes),
        prefix_match_unit=settings.hash_block if several and settings.hash_block != gcd(*sizes) else None,
        split_block_size=settings.split_block if settings.split_block != min(sizes) else None,
        enable_mamba_shared_prefix_checkpoint=settings.shared_prefix_checkpoint,
        prefix_cache_retention_interval=(
            "default" if not sparse else "dense" if interval == names.RETENTION_DENSE else int(interval)
        ),
        max_num_batched_tokens=settings.max_batched_tokens or 8192,
        num_gpu_blocks=settings.num_blocks or 400,
        max_num_seqs=int(attributes.get(names.MAX_NUM_SEQS, MAX_NUM_SEQS)),
        max_model_len=MAX_MODEL_LEN,
        async_scheduling=bool(attributes.get(names.ASYNC_SCHEDULING, False)),
        speculative=_speculative(settings, drafts, capture),
    )


def _speculative(settings: Settings, drafts: bool, capture: Capture) -> Speculative | None:
    """Return the speculation, with as many drafts right as there were on average."""
    if not settings.speculative_method:
        return None
    count = max(1, settings.speculative_tokens)
    drafted = int(capture.requests["drafted_tokens"].sum())
    accepted = int(capture.requests["accepted_tokens"].sum())
    right = round(count * accepted / drafted) if drafted else 0
    return Speculative("mtp" if drafts else "ngram", count, min(count, right))
