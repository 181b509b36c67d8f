"""The whole probe: opens the servers, cuts the prompts, sends them one at a time, and puts together what came."""

import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from analyzers.probe import plan
from analyzers.probe.assemble import report_on, with_usage
from analyzers.probe.client import Server
from analyzers.probe.model import PROBED, WARM_UP, Observation, Report, Send, ServerReport, Sizes
from analyzers.probe.prompts import Vocabulary
from analyzers.probe.session import Session
from analyzers.probe.spans import Joined, Spans
from analyzers.probe.vocabulary import TRIAL_TOKENS, find_vocabulary
from otel_cache.errors import UsageError

WARM_UPS = 2


@dataclass(frozen=True)
class Request:
    """What to probe, and how.

    Attributes:
        urls: by role; the probed server first.
        model: name of the model; None: each server's first.
        api_key: sent to every server; None: none.
        timeout: seconds that one request may take.
        prompt_tokens, block_size: as asked for; None: found out.
        repeats: of each shape.
        output_tokens: that each answer has.
        spans: where our spans of the probed server come; None: nowhere.
        allow_traffic: probe even if others use the server.

    """

    urls: Mapping[str, str]
    model: str | None = None
    api_key: str | None = None
    timeout: float = 120.0
    prompt_tokens: int | None = None
    block_size: int | None = None
    repeats: int = 3
    output_tokens: int = 16
    spans: Spans | None = None
    allow_traffic: bool = False


@dataclass
class _Probed:
    """A server, and what it has answered so far."""

    session: Session
    observations: list[Observation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def probe(request: Request, progress: Callable[[str], None]) -> Report:
    """Probe the servers; `progress` is told what is under way.

    Raises:
        ProbeError: a server is down, slow, busy, or lacks what the probe needs.
        UsageError: a URL, a length, a port or a file of spans that cannot be right.

    """
    if request.spans is not None:
        request.spans.check()
    salt = secrets.token_hex(8)
    draw = random.Random(salt)
    servers = {role: Server(url, request.api_key, request.timeout) for role, url in request.urls.items()}
    urls = [server.url for server in servers.values()]
    if len(set(urls)) < len(urls):
        raise UsageError(
            f"{max(urls, key=urls.count)} is given twice: the second role would hit what the first computed"
        )
    try:
        probed = {}
        for role, server in servers.items():
            progress(f"{server.url}: who else uses it?")
            # Ids that begin alike tell an operator whose requests they are.
            name = f"otel-cache-probe-{salt}-{role}"
            probed[role] = _Probed(Session(server, role, name, request.model, allow_traffic=request.allow_traffic))
        return _probe(request, probed, salt, draw, progress)
    finally:
        for server in servers.values():
            server.close()


def _probe(
    request: Request, probed: Mapping[str, _Probed], salt: str, draw: random.Random, progress: Callable[[str], None]
) -> Report:
    main = probed[PROBED]
    limits = [each.session.model.max_tokens for each in probed.values() if each.session.model.max_tokens]
    limit = max(1, min(limits) - request.output_tokens) if limits else None
    vocabulary, note = find_vocabulary(main.session, draw)
    main.notes += [note] if note else []
    for role, each in probed.items():
        if role != PROBED:
            each.session.extras = main.session.extras
    sizes = _sizes(request, main, vocabulary, limit, draw, progress)
    progress(f"prompts of {sizes.prompt_tokens:,} tokens, boundary {sizes.boundary:,} (grid: {sizes.source})")
    for each in probed.values():
        for number in range(WARM_UPS):
            prompt = vocabulary.fresh(sizes.prompt_tokens, draw)
            each.session.observe(Send(WARM_UP, number, prompt, 0), request.output_tokens)
    sends = plan.plan(sizes, vocabulary, request.repeats, draw)
    for done, send in enumerate(sends, 1):
        # One after the other on all servers: what disturbs the machine disturbs them all.
        for each in probed.values():
            one = each.session.observe(send, request.output_tokens)
            each.observations.append(one)
            took = f"{1e3 * one.answer.time_to_first_token:,.0f} ms"
            progress(f"{done}/{len(sends)} {each.session.role}: {send.shape} {send.number}: first token after {took}")
    _check_lengths(main, sizes)
    joined = _join(request, main, progress)
    reports: list[ServerReport] = []
    for role, each in probed.items():
        own = joined if role == PROBED else Joined(with_usage(each.observations))
        reports.append(report_on(each.session, own, sizes, each.notes, reports[0] if reports else None))
    form: Literal["token ids", "words"] = "words" if vocabulary.words else "token ids"
    return Report(salt, form, sizes, request.repeats, request.output_tokens, reports)


def _sizes(
    request: Request,
    main: _Probed,
    vocabulary: Vocabulary,
    limit: int | None,
    draw: random.Random,
    progress: Callable[[str], None],
) -> Sizes:
    """Return what prompts are cut to, by the best that is known of the grid."""
    wanted = request.prompt_tokens
    if request.spans is not None:
        progress(f"waiting for spans in {request.spans.label}")
        first = main.session.observe(Send(WARM_UP, 0, vocabulary.fresh(TRIAL_TOKENS, draw), 0), 1)
        settings = request.spans.settings(first.trace_id, first.answer.request_id)
        if settings is not None:
            if not settings.prefix_caching:
                return plan.sizes(None, "spans", wanted, limit)
            return plan.sizes(settings.alignment, "spans", wanted, limit, settings.lookahead)
        request.spans.check_begun()
        main.notes.append(
            f"no span of the probe's requests came to {request.spans.label}: is the plugin on in the server, and does "
            "its sidecar write or export there?"
        )
    if request.block_size is not None:
        return plan.sizes(request.block_size, "flag", wanted, limit)
    counters = main.session.counters
    if counters and counters.caching is False:
        return plan.sizes(counters.block_size, "metrics", wanted, limit)
    progress("finding out where hits can end")
    grid = None
    for lengths in plan.grid_lengths(limit):
        found = [main.session.observe(send, 1) for send in plan.grid_plan(lengths, vocabulary, draw)]
        grid = plan.grid_of([one.hit for one in with_usage(found)])
        if plan.grid_is_sure(grid, lengths):
            break
    if grid is not None:
        return plan.sizes(grid, "measured", wanted, limit)
    if counters and counters.block_size:
        return plan.sizes(counters.block_size, "metrics", wanted, limit)
    main.notes.append(
        "no hit shows where hits can end: prompts are cut at no boundary; give --block-size, or the server's spans"
    )
    return plan.sizes(None, "unknown", wanted, limit)


def _check_lengths(main: _Probed, sizes: Sizes) -> None:
    """Note where the server counts other tokens than the prompts have."""
    for one in main.observations:
        if one.answer.prompt_tokens not in (None, one.send.prompt.tokens):
            main.notes.append(
                f"the server counts {one.answer.prompt_tokens:,} tokens in a prompt of {one.send.prompt.tokens:,}: "
                "boundaries are not where they were meant to be"
            )
            return


def _join(request: Request, main: _Probed, progress: Callable[[str], None]) -> Joined:
    observations = with_usage(main.observations)
    if request.spans is None:
        return Joined(observations)
    progress("waiting for the spans of the last request")
    joined = request.spans.join(observations)
    missing = sum(one.lookup is None for one in joined.observations)
    if missing:
        main.notes.append(f"{missing} of {len(observations)} requests have no spans")
    if joined.others:
        main.notes.append(f"other replicas took some requests too: {', '.join(joined.others)}; probe one at a time")
    return joined
