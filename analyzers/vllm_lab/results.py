"""What a run of the lab yields: per request, what vLLM itself reported."""

import msgspec


class RequestResult(msgspec.Struct, frozen=True):
    """One sending. Lengths in tokens.

    `hit_tokens` is what the first admission found computed (`num_computed_tokens` of the step's new request),
    `resumed_hit_tokens` the same of each admission after a preemption, `chunks` what each step computed.
    """

    request_id: str
    replica: int
    prompt_tokens: int
    hit_tokens: int
    resumed_hit_tokens: list[int]
    chunks: list[int]
    output_tokens: int
    preemptions: int


class LabResult(msgspec.Struct, frozen=True):
    """A scenario's run on one version of vLLM; `requests` in the order of sending."""

    vllm_version: str
    requests: list[RequestResult]

    @property
    def hits(self) -> list[int]:
        """Hit tokens of each sending."""
        return [request.hit_tokens for request in self.requests]

    def request(self, request_id: str) -> RequestResult:
        """Return the sending with this id.

        Raises:
            KeyError: there is none.

        """
        for request in self.requests:
            if request.request_id == request_id:
                return request
        raise KeyError(request_id)


class Job(msgspec.Struct, frozen=True):
    """A line to the child: a scenario, as plain data, and the socket that its records go to (None: none)."""

    scenario: dict[str, object]
    socket: str | None


class Answer(msgspec.Struct, frozen=True):
    """A line from the child: a result, or an error in one sentence; `known` if the lab foresaw it."""

    result: LabResult | None = None
    error: str | None = None
    known: bool = False
