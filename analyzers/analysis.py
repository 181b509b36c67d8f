"""The whole analysis: a capture in, results out. Pure."""

from collections import Counter

from analyzers.findings import findings
from analyzers.model import CLASSES, Analysis, Capture, Coverage
from analyzers.replay import Replay
from analyzers.results import lookup_results
from analyzers.sequences import sequences


def analyze(capture: Capture) -> Analysis:
    """Explain every lookup of `capture`.

    Raises:
        CaptureError: a replica's resource lacks what prediction needs.

    """
    replay = Replay(capture)
    replayed = replay.run()
    passes = {(row["life"], row["parent_span_id"], row["group"]): row for row in capture.groups.to_dicts()}
    results = lookup_results(replayed, capture.lives, passes)
    lost: Counter[str] = Counter()
    for result in results:
        lost.update(result.lost)
    return Analysis(
        coverage=Coverage(
            spans=capture.spans,
            replicas=len({life.replica for life in capture.lives}),
            lookups=len(results),
            missing_records=replay.missing,
            skipped_lines=capture.skipped_lines,
            foreign_spans=capture.foreign_spans,
            notes=capture.notes,
        ),
        replicas={life.replica: life.attributes for life in capture.lives},
        lookups=results,
        sequences=sequences(replayed, results),
        findings=findings(results, replay.settings),
        lost={cls: lost[cls] for cls in CLASSES if lost[cls]},
    )
