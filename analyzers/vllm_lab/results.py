"""What a run of the lab yields: per request and per replica, what vLLM itself reported."""

import msgspec


class RequestResult(msgspec.Struct, frozen=True):
    """One sending. Lengths in tokens.

    `hit_tokens` is what the first admission found computed (`num_computed_tokens` of the step's new request),
    `local_tokens` and `external_tokens` are what vLLM counts of it for the cache and for a KV connector;
    `resumed_hit_tokens` the same of each admission after a preemption, `chunks` what each step computed. `drafted` and
    `accepted` count the draft tokens that were scheduled and those that were right. `schedule_calls` counts the calls
    of `schedule` from the request's arrival until it was admitted first. `finish_reason` is vLLM's word.
    """

    request_id: str
    replica: int
    prompt_tokens: int
    hit_tokens: int
    resumed_hit_tokens: list[int]
    chunks: list[int]
    output_tokens: int
    preemptions: int
    local_tokens: int = 0
    external_tokens: int = 0
    finish_reason: str = ""
    drafted: int = 0
    accepted: int = 0
    schedule_calls: int = 0


class ReplicaResult(msgspec.Struct, frozen=True):
    """One replica's scheduler.

    `steps` counts the calls of `schedule`; `drafted`, `accepted`, and `queries` and `hits` (tokens of the prefix cache)
    are the sums of vLLM's own statistics. `digest` is that of all that the scheduler returned: chunks, block ids,
    drafts, outputs. With `observe_cache` the rest is what was put into the block pool's map and taken out, by group:
    how often a block was `registered` under a key, which another block may carry too, keys `added` to the map and
    `removed` from it (a key that moves from block to block is both), and keys `cleared` by a reset,
    and the keys that were in the map at its `peak`, when after a step all groups together had most.
    """

    steps: int
    drafted: int
    accepted: int
    digest: str
    queries: int = 0
    hits: int = 0
    registered: dict[int, int] = {}
    added: dict[int, int] = {}
    removed: dict[int, int] = {}
    cleared: dict[int, int] = {}
    peak: dict[int, int] = {}


class RunResult(msgspec.Struct, frozen=True):
    """A scenario's run: `requests` in the order of sending, `replicas` in that of their names."""

    requests: list[RequestResult]
    replicas: list[ReplicaResult]


class LabResult(msgspec.Struct, frozen=True):
    """A scenario's run on one version of vLLM; `requests` in the order of sending."""

    vllm_version: str
    requests: list[RequestResult]
    replicas: list[ReplicaResult] = []

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
    """A line from the child: a result, or an error in one sentence; `known` if the lab foresaw it.

    `vllm_version` is "" where vLLM cannot be imported.
    """

    result: LabResult | None = None
    error: str | None = None
    known: bool = False
    vllm_version: str = ""
