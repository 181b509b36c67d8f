"""The environment variables that the sidecar reads, besides OpenTelemetry's own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_cache.config import EXPORT, SOCKET_UIDS, SPOOL, SPOOL_BYTES, STEP_SHARE
from otel_cache.errors import UsageError

DEFAULT_SPOOL_BYTES = 512 << 20
DEFAULT_STEP_SHARE = 0.01
OFF = "off"
_UNITS = {"k": 10, "m": 20, "g": 30, "": 0}


@dataclass(frozen=True)
class Settings:
    """What the environment asks of the sidecar.

    Attributes:
        uids: users besides its own whose processes may connect.
        spool: folder of the spool; None: there is none.
        spool_named: the folder was named, and is not the default.
        spool_bytes: how much the spool may hold.
        thin: export what a tracing back end needs, and not every span.
        step_share: share of ordinary steps that are exported all the same, 0 to 1.

    """

    uids: frozenset[int]
    spool: str | None
    spool_named: bool
    spool_bytes: int
    thin: bool
    step_share: float


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the sidecar's settings from `environ`; an empty variable counts as unset.

    Raises:
        UsageError: a variable has an impossible value.

    """
    spool = environ.get(SPOOL, "").strip()
    return Settings(
        uids=_uids(environ.get(SOCKET_UIDS, "")),
        spool=None if spool.lower() == OFF else spool or _default_spool(environ),
        spool_named=bool(spool),
        spool_bytes=_size(environ.get(SPOOL_BYTES, "")),
        thin=_thin(environ.get(EXPORT, "")),
        step_share=_share(environ.get(STEP_SHARE, "")),
    )


def _uids(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and word.isascii() for word in words):
        raise UsageError(f"{SOCKET_UIDS}={text}: give user ids, numbers separated by commas")
    return frozenset(map(int, words))


def _default_spool(environ: Mapping[str, str]) -> str | None:
    state = environ.get("XDG_STATE_HOME")
    try:
        return str((Path(state) if state else Path.home() / ".local" / "state") / "otel-cache" / "spool")
    except RuntimeError:
        return None  # a user without a home has no spool but the one that is named


def _size(text: str) -> int:
    text = text.strip()
    if not text:
        return DEFAULT_SPOOL_BYTES
    number = text.lower().removesuffix("ib").removesuffix("b")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    digits = number.removesuffix(unit).strip()
    if not digits.isdecimal() or not digits.isascii() or int(digits) == 0:
        raise UsageError(f"{SPOOL_BYTES}={text}: give a number of bytes above 0, such as 268435456 or 256M")
    return int(digits) << _UNITS[unit]


def _thin(text: str) -> bool:
    match text.strip().lower():
        case "" | "evidence":
            return False
        case "traces":
            return True
    raise UsageError(f"{EXPORT}={text}: give evidence (every span) or traces (what a tracing back end needs)")


def _share(text: str) -> float:
    if not text.strip():
        return DEFAULT_STEP_SHARE
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"{STEP_SHARE}={text}: give a share from 0 to 1")
    return share
