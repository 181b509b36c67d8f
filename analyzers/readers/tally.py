"""What was passed over while reading, counted by kind, and the sentences that say so."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from otel_cache.errors import CaptureError

NOTES_PER_KIND = 5
NOT_JSON = "lines that are not JSON"
NOT_OTLP = "lines that are not OTLP"
BAD_SPAN = "spans of otel_cache that could not be used"
FILE = "files"

Progress = Callable[[int, int, int], None]
"""Takes, now and then, the spans of otel_cache that were read so far, and the number of the input of how many."""


def no_progress(spans: int, number: int, inputs: int) -> None:
    """Show nothing."""


class SpanError(ValueError):
    """A span of ours that lacks something or says something impossible; never leaves the readers."""


@dataclass
class Tally:
    """Counts of what was read and passed over.

    Attributes:
        spans: spans of otel_cache that were read, each once.
        foreign: spans of other programs, and lines that carry no spans (logs, metrics, `{}`).
        duplicates: spans of otel_cache that had been read before.
        differing: spans of otel_cache whose copies were not the same.
        skipped: lines and spans that could not be read.

    """

    spans: int = 0
    foreign: int = 0
    duplicates: int = 0
    differing: int = 0
    skipped: int = 0
    _notes: list[tuple[str, str]] = field(default_factory=list)
    _kinds: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, sentence: str) -> None:
        """Keep `sentence`, if not too many of its kind are kept already."""
        self._kinds[kind] += 1
        if self._kinds[kind] <= NOTES_PER_KIND:
            self._notes.append((kind, sentence))

    def add(self, other: "Tally") -> None:
        """Take what another one counted."""
        self.spans += other.spans
        self.foreign += other.foreign
        self.duplicates += other.duplicates
        self.differing += other.differing
        self.skipped += other.skipped
        for kind, sentence in other._notes:
            if sum(each == kind for each, _ in self._notes) < NOTES_PER_KIND:
                self._notes.append((kind, sentence))
        self._kinds += other._kinds

    def skip(self, kind: str, where: str, why: str) -> None:
        """Count a line or a span that could not be read."""
        self.skipped += 1
        self.note(kind, f"{where}: {why}")

    def kept(self) -> tuple[list[tuple[str, str]], dict[str, int]]:
        """Return the sentences that were kept, with their kinds, and how many there were of each kind."""
        return list(self._notes), dict(self._kinds)

    def keep(self, notes: Sequence[tuple[str, str]], kinds: Mapping[str, int]) -> None:
        """Take over what `kept` gave."""
        self._notes = [(kind, sentence) for kind, sentence in notes]
        self._kinds = Counter(kinds)

    def notes(self) -> list[str]:
        """Return the sentences that were kept, and one per kind for the rest."""
        sentences = [sentence for _, sentence in self._notes]
        for kind, count in self._kinds.items():
            if count > NOTES_PER_KIND:
                sentences.append(f"and {count - NOTES_PER_KIND} more {kind}")
        if self.duplicates:
            plural = "" if self.duplicates == 1 else "s"
            sentence = f"{self.duplicates} span{plural} came more than once and counted once"
            if self.differing:
                sentence += f"; the copies of {self.differing} are not the same: the one that holds most counted"
            sentences.append(sentence)
        return sentences


def nothing_of_ours(labels: Sequence[str], tally: Tally) -> CaptureError:
    """Return the error that the inputs of these names hold no span that is of use."""
    where = labels[0] if len(labels) == 1 else f"{len(labels)} files ({labels[0]}, ...)"
    read = f"{tally.foreign} of other programs"
    if tally.skipped:
        read += f", {tally.skipped} lines or spans that could not be read"
    notes = "".join(f"\n  {note}" for note in tally.notes()[:3])
    return CaptureError(
        f"{where}: no usable span of otel_cache ({read}). Was the plugin on (`otel-cache run`, or "
        f"OTEL_PYTHON_VLLM_CACHE_ENABLED=true), and is this the file that the sidecar or a collector wrote?{notes}"
    )
