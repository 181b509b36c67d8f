"""Judges a report by a policy: each rule holds, does not, or cannot be told."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from analyzers import model
from analyzers.experiments.policy import RECORDED, FirstRepeat, Policy
from analyzers.experiments.worksheet import extension_boundary, resend_boundary
from analyzers.settings import Settings, read_settings
from analyzers.wording import number
from otel_cache.errors import CaptureError
from otel_cache.semconv import names

Outcome = Literal["pass", "fail", "unknown"]
EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "unknown": 2}
INVALID = frozenset({
    model.KEY_DIFFERENCE, model.IN_FLIGHT, model.EVICTED, model.RESET, model.HELD_ELSEWHERE, model.CHECKPOINT_EVICTED,
    model.SKIPPED, model.EXTERNAL,
})  # fmt: skip
"""A repeat that lost to one of these says nothing of the boundary: what it needed was not there, or not asked for."""
SHOWN = 5
Report = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """One rule: what came of it, a sentence, and what it rests on."""

    rule: str
    outcome: Outcome
    says: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """All rules, and what they come to: `fail` if one fails, else `unknown` if one cannot be told."""

    rules: Sequence[Judged]
    recorded: Mapping[str, Sequence[Any]]

    @property
    def outcome(self) -> Outcome:
        """The whole."""
        outcomes = {judged.outcome for judged in self.rules}
        return "fail" if "fail" in outcomes else "unknown" if "unknown" in outcomes else "pass"


def judge(report: Report, policy: Policy, probe: Report | None = None) -> Verdict:
    """Judge a JSON report of `otel-cache analyze`, and a probe's where there is one."""
    rules: list[Judged] = []
    if policy.first_repeat is not None:
        rules.append(_first_repeat(report, policy.first_repeat))
    if policy.outputs_equal:
        rules.append(_outputs(probe))
    if policy.occupancy is not None:
        rules.append(_occupancy(report, policy.occupancy.at_most))
    if policy.evictions is not None:
        rules.append(_evictions(report, policy.evictions.at_most_blocks, policy.evictions.at_most_share))
    if policy.warm_conversations is not None:
        warm = policy.warm_conversations
        rules.append(_warm(report, warm.at_least, warm.two_longest_tokens))
    if policy.findings is not None:
        rules.append(_findings(report, policy.findings.none_of))
    if policy.settings is not None:
        rules.append(_settings(report, policy.settings))
    if policy.recorded:
        rules.append(_recorded(report, policy.recorded if isinstance(policy.recorded, tuple) else None))
    return Verdict(rules, {name: _values(report, name) for name in (*RECORDED, names.SPECULATIVE_METHOD)})


def _first_repeat(report: Report, rule: FirstRepeat) -> Judged:
    checked = list(_repeats(report, rule))
    unknown = [each for each in checked if each["hit_tokens"] is None]
    short = [each for each in checked if each not in unknown and each["hit_tokens"] < each["boundary"]]
    evidence = {"repeats": checked[: 4 * SHOWN], "checked": len(checked), "short": short[: 4 * SHOWN]}
    if short:
        worst = max(short, key=lambda each: each["boundary"] - each["hit_tokens"])
        says = (
            f"{len(short)} of {len(checked)} first repeats fall short; {worst['request_id']} hit "
            f"{number(worst['hit_tokens'])}, the boundary is {number(worst['boundary'])}"
        )
        return Judged("first_repeat", "fail", says, evidence)
    if unknown or not checked:
        says = "the capture has no valid repeat of a prompt: send one twice, one after the other"
        if unknown:
            says = f"of {len(unknown)} repeats the cause is unknown: records are missing"
        return Judged("first_repeat", "unknown", says, evidence)
    return Judged("first_repeat", "pass", f"all {len(checked)} first repeats hit their boundary", evidence)


def _repeats(report: Report, rule: FirstRepeat) -> Iterator[dict[str, Any]]:
    """Yield the first valid repeat of each sequence: who, what it hit (None: not known), and what it should."""
    lookups = {(each["replica"], each["request_id"]): each for each in report["lookups"]}
    settings = _settings_of(report)
    for sequence in report["sequences"]:
        if sequence["shape"] not in rule.shapes or len(set(sequence["replicas"])) != 1:
            continue
        replica = sequence["replicas"][0]
        members = [lookups[replica, name] for name in sequence["requests"] if (replica, name) in lookups]
        for before, repeat in pairwise(members):
            if INVALID & set(repeat["lost"]):
                continue
            known = model.UNKNOWN not in repeat["lost"] and settings.get(replica) is not None
            boundary = _boundary(settings[replica], before, repeat) if known else 0
            if known and not boundary:
                break
            yield {
                "request_id": repeat["request_id"],
                "shape": sequence["shape"],
                "hit_tokens": repeat["hit_tokens"] if known else None,
                "boundary": max(0, boundary - rule.slack_tokens),
            }
            break


def _boundary(settings: Settings | None, before: Report, repeat: Report) -> int:
    """Return the longest hit that the repeat can have: of its own prompt, and of what the one before it had."""
    assert settings
    own = resend_boundary(settings, repeat["prompt_tokens"])
    if repeat["prompt_tokens"] > before["prompt_tokens"]:
        return min(own, extension_boundary(settings, before["prompt_tokens"]))
    return own


def _settings_of(report: Report) -> dict[str, Settings | None]:
    found: dict[str, Settings | None] = {}
    for replica in report["replicas"]:
        try:
            found[replica["replica"]] = read_settings(replica["settings"], f"replica {replica['replica']}")
        except CaptureError:
            found[replica["replica"]] = None
    return found


def _outputs(probe: Report | None) -> Judged:
    rule = "outputs_equal"
    if probe is None:
        return Judged(
            rule, "unknown", "no probe was given; name the JSON of `otel-cache probe --control` with --probe", {}
        )
    pairs = {
        f"{server.get('role', 'server')} {what}": server.get(key)
        for server in probe.get("servers", ())
        for what, key in (("against itself", "outputs"), ("against the probed server", "outputs_against_probed"))
    }
    compared = {name: each for name, each in pairs.items() if isinstance(each, Mapping) and each.get("compared")}
    different = [name for name, each in compared.items() if not each.get("equal")]
    evidence = {name: {key: each.get(key) for key in ("equal", "compared", "by")} for name, each in compared.items()}
    if different:
        return Judged(rule, "fail", f"outputs differ: {', '.join(different)}", evidence)
    if not any(name.endswith("probed server") for name in compared):
        return Judged(rule, "unknown", "the probe had no control to compare outputs with; give it --control", evidence)
    return Judged(rule, "pass", "outputs equal the control's, token by token at temperature 0", evidence)


def _occupancy(report: Report, most: float) -> Judged:
    # Not the highest of the moments: of those a report has 60 at most.
    shares = {
        pool["replica"]: pool["cached_most"] / pool["num_blocks"] for pool in report["capacity"] if pool["num_blocks"]
    }
    if not shares:
        return Judged("occupancy", "unknown", "the capture does not say how large the pools are", {})
    worst = max(shares, key=lambda replica: shares[replica])
    says = f"{worst} cached {shares[worst]:.1%} of its pool at once; {most:.1%} are allowed"
    return Judged("occupancy", "pass" if shares[worst] <= most else "fail", says, {"share": shares})


def _evictions(report: Report, most: int | None, share: float | None) -> Judged:
    groups = [group for pool in report["capacity"] for group in pool["groups"]]
    evicted, stored = (sum(group[key] for group in groups) for key in ("evicted", "stored"))
    evidence = {"evicted": evicted, "stored": stored}
    if not groups or report["coverage"]["missing_records"]:
        return Judged("evictions", "unknown", "records are missing, so evictions cannot be counted", evidence)
    over = (most is not None and evicted > most) or (share is not None and evicted > share * stored)
    allowed = [f"{number(most)} blocks"] if most is not None else []
    allowed += [f"{share:.1%} of the stored ones"] if share is not None else []
    says = (
        f"{number(evicted)} of {number(stored)} stored blocks were evicted; allowed: {' and '.join(allowed) or 'any'}"
    )
    return Judged("evictions", "fail" if over else "pass", says, evidence)


def _warm(report: Report, least: int, tokens: int) -> Judged:
    pools = report["capacity"]
    if not pools:
        return Judged("warm_conversations", "unknown", "the capture stored nothing", {})
    warm = max(pool["warm"] for pool in pools)
    longest = max(sum(each["tokens"] for each in pool["longest"]) for pool in pools)
    says = f"{warm} {'conversation' if warm == 1 else 'conversations'} stayed warm at once"
    if warm:
        says += f", {'' if warm == 1 else 'the two longest of them '}with {number(longest)} tokens"
    says += f"; at least {least} and {number(tokens)} tokens are asked for"
    outcome: Outcome = "pass" if warm >= least and longest >= tokens else "fail"
    return Judged("warm_conversations", outcome, says, {"warm": warm, "two_longest_tokens": longest})


def _findings(report: Report, rules: Sequence[str]) -> Judged:
    found = {each["rule"]: each["summary"] for each in report["findings"] if each["rule"] in rules}
    if found:
        return Judged("findings", "fail", "; ".join(found.values()), {"rules": sorted(found)})
    if report["coverage"]["missing_records"]:
        return Judged("findings", "unknown", "records are missing, so a finding may be", {"rules": []})
    if not report["coverage"]["lookups"]:
        return Judged("findings", "unknown", "the report is about no lookup, so nothing could be found", {"rules": []})
    return Judged("findings", "pass", f"none of {', '.join(rules)}", {"rules": []})


def _settings(report: Report, wanted: Mapping[str, Any]) -> Judged:
    differ = [
        f"the policy asks for {name} {value}; it is {_shown(_values(report, name))}"
        for name, value in wanted.items()
        if [str(each) for each in _values(report, name)] != [str(value)]
    ]
    if differ:
        return Judged("settings", "fail", "; ".join(differ), {"wanted": dict(wanted)})
    return Judged("settings", "pass", "as the policy says", {"wanted": dict(wanted)})


def _recorded(report: Report, wanted: Sequence[str] | None) -> Judged:
    """Judge whether what is wanted is recorded; None: `RECORDED`, and the commit where the version names none."""
    replicas = [replica["settings"] for replica in report["replicas"]]
    needed = list(RECORDED if wanted is None else wanted)
    if wanted is None and any(settings.get(names.SPECULATIVE_TOKENS) for settings in replicas):
        needed.append(names.SPECULATIVE_METHOD)
    missing = [name for name in needed if any(settings.get(name) in (None, "") for settings in replicas)]
    note = ""
    if wanted is None and names.VLLM_COMMIT in missing:
        versions = sorted({str(each.get(names.VLLM_VERSION)) for each in replicas if not each.get(names.VLLM_COMMIT)})
        if all(map(names_commit, versions)):
            missing.remove(names.VLLM_COMMIT)
            needed.remove(names.VLLM_COMMIT)
            note = f"; the commit is that of vLLM {', '.join(versions)}, whose build does not say it"
    evidence = {"missing": sorted(missing), "recorded": [name for name in needed if name not in missing]}
    if missing:
        return Judged("recorded", "fail", f"not recorded: {', '.join(sorted(missing))}", evidence)
    return Judged("recorded", "pass", f"recorded are {', '.join(needed)}{note}", evidence)


def names_commit(version: str) -> bool:
    """Whether a version of vLLM says which commit it is of.

    A release does by its tag; its builds leave `vllm.commit` empty. That of a checkout has a version such as
    0.32.1.dev5+g4ba787ec9.
    """
    if re.match(r"\d+\.\d+", version) is None:
        return False
    return ".dev" not in version or re.search(r"[+.]g[0-9a-f]{7,40}(\.|$)", version) is not None


def _values(report: Report, name: str) -> list[Any]:
    found: list[Any] = []
    for replica in report["replicas"]:
        value = replica["settings"].get(name)
        if value is not None and value not in found:
            found.append(value)
    return found


def _shown(values: Sequence[Any]) -> str:
    return " and ".join(str(value) for value in values) or "not recorded"
