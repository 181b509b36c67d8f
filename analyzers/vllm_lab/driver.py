"""Drives requests through vLLM's schedulers, as `EngineCore` does. Runs in the lab's child process.

The forward pass is all that is missing: in its place stands a `ModelRunnerOutput` with made-up tokens, which is all
that a scheduler ever sees of a GPU. The driver knows nothing of caches: what it reports of a request is what vLLM's
own `SchedulerOutput` said of it.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from analyzers.vllm_lab.engine import Replica, accepted, build_replicas, known
from analyzers.vllm_lab.results import RequestResult
from analyzers.vllm_lab.scenario import Scenario, Sending, Speculative, batches
from analyzers.vllm_lab.tokens import SPECIAL, VOCABULARY, output, segment
from otel_cache.errors import LabError

IDLE_STEPS = 8
"""Empty steps in a row, while requests wait, after which nothing will ever be scheduled."""


@dataclass
class _Progress:
    """What vLLM has said of a request so far."""

    sending: Sending
    request: Any
    hit: int | None = None
    resumed: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    furthest: int = 0

    def result(self) -> RequestResult:
        return RequestResult(
            request_id=self.sending.id,
            replica=self.sending.replica,
            prompt_tokens=self.request.num_prompt_tokens,
            hit_tokens=self.hit or 0,
            resumed_hit_tokens=self.resumed,
            chunks=self.chunks,
            output_tokens=self.request.num_output_tokens,
            preemptions=getattr(self.request, "num_preemptions", 0),
        )


def run_scenario(scenario: Scenario) -> list[RequestResult]:
    """Build the replicas, send all requests, and return what vLLM said of each, in the order of sending.

    Raises:
        LabError: vLLM refuses the engine, or the block pool is too small for a request.

    """
    drivers = [_Driver(replica, scenario) for replica in build_replicas(scenario.engine, scenario.replicas)]
    results: list[RequestResult] = []
    for batch in batches(scenario):
        progress = [drivers[sending.replica].add(sending) for sending in batch]
        # All replicas step in turn, as if each had a GPU of its own.
        while busy := [driver for driver in drivers if driver.busy]:
            for driver in busy:
                driver.step()
        results.extend(each.result() for each in progress)
    return results


class _Driver:
    """The loop of one engine core: its scheduler, and the steps whose output it has not been given yet."""

    def __init__(self, replica: Replica, scenario: Scenario) -> None:
        self._scheduler = replica.scheduler
        self._hasher = replica.block_hasher
        self._queue_size = replica.queue_size
        self._queue: deque[tuple[Any, Any]] = deque()
        self._scenario = scenario
        self._progress: dict[str, _Progress] = {}
        self._loras: dict[str, int] = {}
        self._idle = 0
        self._stuck = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to schedule or to finish."""
        return bool(self._queue) or self._scheduler.has_requests()

    def add(self, sending: Sending) -> _Progress:
        """Hand a request to the scheduler."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        asked = sending.request
        arguments = accepted(
            Request.__init__,
            request_id=sending.id,
            prompt_token_ids=[token for part in asked.prompt for token in segment(part.segment, part.tokens)],
            sampling_params=SamplingParams(max_tokens=asked.output_tokens, temperature=0, ignore_eos=True),
            pooling_params=None,
            eos_token_id=None,
            lora_request=self._lora(asked.lora),
            cache_salt=asked.cache_salt,
            block_hasher=self._hasher,
        )
        request = Request(**arguments)
        progress = _Progress(sending, request)
        self._progress[sending.id] = progress
        self._scheduler.add_request(request)
        return progress

    def step(self) -> None:
        """Schedule a step, and give the scheduler the output of the oldest one once the queue is full."""
        scheduler = self._scheduler
        if scheduler.has_requests():
            step = scheduler.schedule()
            self._queue.append((step, self._execute(step)))
            scheduled = step.total_num_scheduled_tokens > 0
            self._note(step, scheduled)
            if len(self._queue) < self._queue_size and (scheduled or scheduler.has_requests()):
                return
        if not self._queue:
            return
        step, result = self._queue.popleft()
        scheduler.update_from_output(step, result)
        if self._queue_size == 1:
            self._draft(step)

    def _execute(self, step: Any) -> Any:
        """Return the output of a forward pass: a token for each request that has reached its last known one."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            request = self._progress[name].request
            if request.num_computed_tokens < request.num_tokens:
                sampled.append([])
                continue
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            count = 1 + min(drafts, self._accepted_tokens)
            # What earlier steps sampled and the scheduler has not been given yet comes first.
            start = request.num_output_tokens + sum(
                len(result.sampled_token_ids[result.req_id_to_index[name]])
                for _, result in self._queue
                if name in result.req_id_to_index
            )
            sampled.append(output(name, start + count)[start:])
        return known(
            ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _draft(self, step: Any) -> None:
        """Propose draft tokens for the next step: the accepted ones right, the others wrong."""
        speculative = self._scenario.engine.speculative
        if speculative is None:
            return
        from vllm.v1.outputs import DraftTokenIds

        names = [name for name in step.num_scheduled_tokens if name in self._scheduler.requests]
        if names:
            drafts = [self._drafts(name, speculative) for name in names]
            self._scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _drafts(self, name: str, speculative: Speculative) -> list[int]:
        start = self._progress[name].request.num_output_tokens
        tokens = output(name, start + speculative.num_speculative_tokens)[start:]
        right = speculative.accepted_tokens
        return tokens[:right] + [_other(token) for token in tokens[right:]]

    @property
    def _accepted_tokens(self) -> int:
        speculative = self._scenario.engine.speculative
        return speculative.accepted_tokens if speculative else 0

    def _lora(self, name: str | None) -> Any:
        if name is None:
            return None
        from vllm.lora.request import LoRARequest

        number = self._loras.setdefault(name, len(self._loras) + 1)
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=name)

    def _note(self, step: Any, scheduled: bool) -> None:
        """Keep what the step says of each request, and stop when nothing comes of it any more."""
        for new in step.scheduled_new_reqs:
            self._progress[new.req_id].hit = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", ())
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in resumed:
                self._progress[name].resumed.append(computed)
        advanced = False
        for name, tokens in step.num_scheduled_tokens.items():
            progress = self._progress[name]
            progress.chunks.append(tokens)
            reached = progress.request.num_computed_tokens
            if reached > progress.furthest:
                progress.furthest = reached
                advanced = True
        self._idle = 0 if scheduled or self._queue or not self._waiting() else self._idle + 1
        self._stuck = 0 if advanced else self._stuck + 1
        if self._idle > IDLE_STEPS or self._stuck > self._patience():
            raise LabError(self._too_small())

    def _waiting(self) -> list[str]:
        return [name for name in self._scheduler.requests if name in self._progress]

    def _patience(self) -> int:
        """Return how many steps may pass without a new token: all preempted requests may prefill again."""
        engine = self._scenario.engine
        tokens = sum(int(self._progress[name].request.num_tokens) for name in self._waiting())
        # A mamba prefill may be cut at every block.
        return 100 + 4 * (tokens // min(engine.max_num_batched_tokens, min(engine.block_sizes())) + 1)

    def _too_small(self) -> str:
        waiting = self._waiting()
        lengths = ", ".join(f"{name} ({self._progress[name].request.num_tokens} tokens)" for name in waiting[:4])
        blocks = self._scenario.engine.num_gpu_blocks
        return (
            f"engine.num_gpu_blocks: a pool of {blocks} blocks is too small for {lengths}: vLLM schedules nothing "
            "more; give it more blocks or send shorter requests"
        )


def _other(token: int) -> int:
    """Return a token that is not `token`."""
    return SPECIAL + (token - SPECIAL + 1) % (VOCABULARY - SPECIAL)
