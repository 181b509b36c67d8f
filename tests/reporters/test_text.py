"""The text report: what stands in it for the model case, and 80 columns for anything."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import wcwidth
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.analysis import analyze
from analyzers.model import FUNNEL, Analysis, Sequence_
from analyzers.readers import open_capture
from analyzers.reporters import html, layout, markdown_report, text, words
from analyzers.reporters.layout import figures, sentence, shorten
from analyzers.reporters.selection import Lookups
from analyzers.vllm_lab.engine import MODEL
from tests.reporters.example import ANALYSIS, COLD, EMPTY, REPEAT, analyses

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))
EXPECTED = """\
44 spans, 1 replica, 2 lookups; 0 missing records, 1 skipped line; 5 spans not
sampled, 1 not exported
Incomplete, so that causes may be unknown: r0
Clocks that differ from their callers' (times across replicas are that
uncertain): r0 -1.500 ms

Of 23,820 prompt tokens
  served from cache        0    0.0 %
  lost by design      14,220   59.7 %
    cold              11,910   50.0 %
    tail                 710    3.0 %
    speculative_drop   1,600    6.7 %
  avoidable            9,600   40.3 %
    shifted_boundary   9,600   40.3 %

Prefill took 1.0 to 3.0 s, of which 0.5 to 1.2 s could have been saved.

What would give most back
  9,600: set --prefix-cache-retention-interval 1600

From prompt to hit
  prompt                      23,820  100.0 %
  seen before                 11,910   50.0 %
  held on some replica        11,200   47.0 %
  held on the replica chosen  11,200   47.0 %
  agreed on by all groups          0    0.0 %
  served                           0    0.0 %

Findings (1)

1. The retention mask refused the state [shifted-boundary, warning]
  Seen at  Request repeat-0 on r0: hit 0 of 11,910 tokens, a hit needed every
           group at 9,600, which cold-0 had computed
  Cause    The state at 9,600 was computed, but the retention mask refused it
    group  kind            block   asked    had  below   above
    0-2    mamba           1,600   9,600      0      -       -
        at 9,600: computed, refused by the mask; chunk ended at 9,600; mask
        wanted 11,200
    3      full_attention  1,600  11,909  9,600  9,600  11,200
        at 9,600: stored
  Fix      Set --prefix-cache-retention-interval 1600
  Lost     9,600 tokens, 0.5 to 1.2 s of prefill
  Replicas r0, r1

Fleet
  regret, what the best replica would have hit more: 9,600 tokens in 1 lookup
  routing by prefix would have saved 9,600, by conversation 0, of what was
    resident at the time
  families with most regret: cold-0 9,600
  prefixes stored: 22,400 tokens, of which 11,200 distinct

Routers
  http://r0:8000 (KvawareRouter): 2 lookups on r0, r1, hit 0, another replica
    would have hit 9,600 more; saw 11,210 cached, the best replicas would have
    hit 9,600

Block pools
  r0: 400 blocks
    group  kind            block  peak   share  evicted  per segment
    0      mamba           1,600     3  12.5 %        6          0.5
        age at eviction: median 120.0 ms, 90 % within 250.5 ms
    1*     full_attention     16    21  87.5 %        0        100.0
        age at eviction: -
    cached at once at the most: 24 of 400, of which share is a group's part; the
      others were free, or held by requests that had cached nothing in them yet;
      requests held at most 12.5 % of the pool
    * the drafter's
    blocks evicted, by the group that was given them, and of which group they
    were:
      given to   share  of 0  of 1*
      0         20.0 %     1  0
      1*        80.0 %     4  0
      ?                    1  0
    cached at 0.0, 12.5 ms: group 0 0, 3; group 1* 0, 21
    from eviction to the next miss: median 3.2 ms, 90 % within 9.0 ms
    2 conversations stayed warm together, the longest cold-0 (11,910 tokens) and
      other (5,000 tokens)

Sequences (2)
  never hits: cold-0, repeat-0 (identical), hits 0, 0
    The state at 9,600 was computed, but the retention mask refused it
  miss-hit: cold-0, leaves (divergence), hits 0, 8,000, on 2 replicas, 11,195
    tokens shared, the last boundary in them 9,600

Lookups that lost more than is by design (1)
  request   replica  prompt  hit  predicted  lost
  repeat-0  r0       11,910    0          0  tail 710, speculative_drop 1,600,
                                             shifted_boundary 9,600
"""


def test_the_model_case() -> None:
    assert text.render(ANALYSIS) == EXPECTED


def test_lookups_are_listed_as_asked() -> None:
    assert "\n  cold-0 " in text.render(ANALYSIS, "all")
    assert "predicted" not in text.render(ANALYSIS, "none")


def test_without_lookups_there_is_little_to_say() -> None:
    assert "No findings" in text.render(EMPTY)
    assert "%" not in text.render(EMPTY)


def test_what_is_not_accounted_for_stands_apart() -> None:
    assert "not accounted" not in text.render(ANALYSIS)
    more = replace(COLD, hit_tokens=12000, lost={"unexplained": -90})
    report = text.render(replace(ANALYSIS, lookups=[more], findings=[], lost={"unexplained": -90}))
    assert "not accounted for     -90" in report
    assert "avoidable               0" in report
    assert "unexplained -90" in report


def test_a_long_list_is_cut_unless_asked_for() -> None:
    many = replace(ANALYSIS, lookups=[REPEAT] * 60, sequences=list(ANALYSIS.sequences) * 60)
    report = text.render(many)
    assert report.count("  repeat-0  r0") == 50
    assert report.count("and 10 more: ") == 1
    assert report.count("and 65 more: ") == 1
    assert text.render(many, "all").count("  repeat-0  r0") == 60


def test_colour_only_where_asked() -> None:
    assert "\x1b" not in text.render(ANALYSIS)
    colored = text.render(ANALYSIS, color=True)
    assert "\x1b[31m  avoidable" in colored
    for code in (text.BOLD, text.RED, text.GREEN, text.YELLOW, text.PLAIN):
        colored = colored.replace(code, "")
    assert colored == text.render(ANALYSIS)


@settings(max_examples=60, deadline=None)
@given(analyses(), st.sampled_from(["all", "losing", "none"]), st.sampled_from([40, 80, 120]))
def test_no_line_is_too_long_and_no_control_character_gets_through(
    analysis: Analysis, lookups: Lookups, width: int
) -> None:
    report = text.render(analysis, lookups, width)
    for line in report.split("\n"):
        assert wcwidth.width(line) <= width
        assert not line or line.isprintable()


@given(st.text(max_size=60), st.integers(8, 40))
def test_an_identifier_keeps_its_ends(identifier: str, width: int) -> None:
    short = shorten(identifier, width)
    assert wcwidth.width(short) <= width
    if wcwidth.width(identifier) <= width and identifier.isprintable() and " " not in identifier:
        assert short == identifier


CHINESE, EMOJI = "请求-文档摘要-第一次发送", "🚀-rollout-🚀-canary-🚀-westeurope"


def test_tables_with_wide_characters_stand_in_columns(tmp_path: Path) -> None:
    """A Chinese character takes two columns of a terminal: numbers end below their head, nothing is wider than 80."""
    named = {"repeat-0": CHINESE, "replica-0": EMOJI}
    raw = EXAMPLE.read_text(encoding="utf-8")
    for name, wide in named.items():
        raw = raw.replace(f'"{name}"', f'"{wide}"')
    path = tmp_path / "spans.jsonl"
    path.write_text(raw, encoding="utf-8")
    lines = text.render(analyze(open_capture([path])), "all").splitlines()
    assert max(map(wcwidth.width, lines)) <= 80
    assert CHINESE in "".join(lines)
    head = next(index for index, line in enumerate(lines) if line.split()[:3] == ["request", "replica", "prompt"])
    end = wcwidth.width(lines[head][: lines[head].index("prompt") + len("prompt")])
    rows = [line for line in lines[head + 1 :] if "11,910 " in line]
    assert len(rows) == 4
    for row in rows:
        assert wcwidth.width(row[: row.index("11,910") + len("11,910")]) == end
    # A word without spaces is broken where the line is full, by columns as well.
    assert [wcwidth.width(line) for line in layout.wrap("请求" * 10, 12, "  ")] == [12, 12, 12, 12]


def test_a_name_keeps_its_letters_where_a_sentence_begins_with_it() -> None:
    for said in ("vllm:prefix_cache_hits_total counts 9", "gen_ai.usage says 9", "pod-0 hit 9", "9 tokens"):
        assert sentence(said) == said
    assert sentence("the drafter's group") == "The drafter's group"
    assert sentence("groups, all of them") == "Groups, all of them"


def test_the_replicas_of_a_finding_are_a_field_like_the_others() -> None:
    finding = replace(ANALYSIS.findings[0], replicas=[f"replica-{index}" for index in range(9)])
    lines = text.render(replace(ANALYSIS, findings=[finding])).splitlines()
    assert "  Replicas replica-0, replica-1, replica-2, replica-3, replica-4, replica-5 and" in lines
    assert lines[
        lines.index("  Replicas replica-0, replica-1, replica-2, replica-3, replica-4, replica-5 and") + 1
    ] == ("           3 more")


def test_figures_of_a_finding_are_for_readers() -> None:
    """Seconds in their unit, no digit that says nothing, names in words."""
    evidence = {
        "method": "mtp", "drafted": 12000, "prefill_seconds": (0.0123456789, 0.0987654321),
        "decode_seconds_saved": None,
        "pool_share": 0.123456789, "of_groups": {0: 1200}, "drafter": False, "begin": 1_700_000_000_000_000_000,
    }  # fmt: skip
    assert figures(evidence) == (
        "method: mtp; drafted: 12,000; prefill: 12.3 to 98.8 ms; decode saved: not known; pool share: 0.123; "
        "of groups: 0 (1,200); drafter: no; begin: 2023-11-14 22:13:20 UTC"
    )


def test_ids_and_hits_of_a_long_sequence_stand_in_the_same_places() -> None:
    names, hits = [f"r{place}" for place in range(12)], [1000 * place for place in range(12)]
    long = Sequence_(names, "identical", hits, "miss-hit", "", ["r0" for _ in names])
    report = text.render(replace(ANALYSIS, sequences=[long]), width=120)
    assert (
        "miss-hit: r0, r1, r2, r3, ... 5 more ..., r9, r10, r11 (identical), hits 0, 1,000, 2,000, 3,000, ... 5"
        in report
    )
    assert "... 5 more ..., 9,000, 10,000, 11,000" in " ".join(report.split())
    assert words.elided(names[:8]) == names[:8]


def test_a_capture_of_the_lab_says_what_its_times_are() -> None:
    """The example is one; the name of its model is that of the lab."""
    lab = replace(ANALYSIS, replicas={"r0": {"vllm.model": MODEL}})
    for render in (text.render, markdown_report.render, html.render):
        assert "scheduler without a model" in " ".join(render(lab).split())
        assert "scheduler without a model" not in " ".join(render(ANALYSIS).split())
    assert "scheduler without" not in text.render(replace(lab, prefill_seconds=None))
    assert {life.attributes["vllm.model"] for life in open_capture([EXAMPLE]).lives} == {MODEL}


def test_nothing_to_save_is_not_said_in_seconds() -> None:
    assert "could have been saved" not in text.render(replace(ANALYSIS, avoidable_seconds=(0.0, 0.0)))


def test_every_report_names_the_stages_alike() -> None:
    for stage in words.STAGES.values():
        for render in (text.render, markdown_report.render, html.render):
            assert stage in render(ANALYSIS)
    assert tuple(words.STAGES) == FUNNEL
