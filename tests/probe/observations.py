"""Observations made up of a few figures, for rules that need no server."""

from collections.abc import Sequence

from analyzers.probe.client import Answer
from analyzers.probe.metrics import Delta
from analyzers.probe.model import Observation, Send
from analyzers.probe.prompts import Prompt

COLD_SECONDS = 1.0


def observation(
    number: int,
    *,
    usage: int | None = None,
    metrics: int | None = None,
    seconds: float = COLD_SECONDS,
    tokens: int = 3000,
    shared: int = 3000,
    shape: str = "identical",
    output: Sequence[int] | None = (1, 2, 3),
    text: str = "",
    prompt: int = 0,
    trace: str = "",
) -> Observation:
    """Return what came of a send; `prompt` tells prompts apart."""
    answer = Answer(
        request_id="cmpl-x",
        text=text,
        token_ids=None if output is None else tuple(output),
        time_to_first_token=seconds,
        duration=2 * seconds,
        prompt_tokens=tokens,
        output_tokens=3,
        cached_tokens=usage,
    )
    delta = None if metrics is None else Delta(tokens, metrics, tokens, 3, 1, None, None)
    send = Send(shape, number, Prompt((prompt,), tokens, [prompt]), shared if number else 0)
    return Observation(send, answer, trace, delta, usage)
