"""Drives requests through vLLM's schedulers, as `EngineCore` does. Runs in the lab's child process.

The forward pass is all that is missing: in its place stands a `ModelRunnerOutput` with made-up tokens, which is all
that a scheduler ever sees of a GPU. The driver knows nothing of caches: what it reports of a request is what vLLM's
own `SchedulerOutput` said of it.
"""

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.vllm_lab.connectors import transferred
from analyzers.vllm_lab.engine import Replica, build_replicas, known
from analyzers.vllm_lab.observer import Observer
from analyzers.vllm_lab.requests import RequestMaker
from analyzers.vllm_lab.results import ReplicaResult, RequestResult, RunResult
from analyzers.vllm_lab.scenario import Scenario, Sending, Speculative, batches
from analyzers.vllm_lab.tokens import SPECIAL, STOP, output
from otel_cache.errors import LabError

IDLE_STEPS = 8
"""Empty steps in a row, while requests wait, after which nothing will ever be scheduled."""


@dataclass
class _Progress:
    """What vLLM has said of a request so far; `since` is the replica's call of `schedule` that it arrived before."""

    sending: Sending
    request: Any
    since: int
    hit: int | None = None
    admitted: int = 0
    resumed: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    furthest: int = 0
    local: int = 0
    external: int = 0
    drafted: int = 0
    accepted: int = 0

    def result(self) -> RequestResult:
        reason = self.request.get_finished_reason()
        return RequestResult(
            request_id=self.sending.id,
            replica=self.sending.replica,
            prompt_tokens=self.request.num_prompt_tokens,
            hit_tokens=self.hit or 0,
            resumed_hit_tokens=self.resumed,
            chunks=self.chunks,
            output_tokens=self.request.num_output_tokens,
            preemptions=getattr(self.request, "num_preemptions", 0),
            local_tokens=self.local,
            external_tokens=self.external,
            finish_reason="" if reason is None else str(reason),
            drafted=self.drafted,
            accepted=self.accepted,
            schedule_calls=self.admitted - self.since,
        )


def run_scenario(scenario: Scenario, pace: Callable[[], None] = lambda: None) -> RunResult:
    """Build the replicas, send all requests, and return what vLLM said of each, in the order of sending.

    `pace` is called after each batch: without a forward pass the scheduler outruns what listens to it.

    Raises:
        LabError: vLLM refuses the engine or lacks something, the block pool is too small for a request, or a connector
            never ends.

    """
    drivers = [_Driver(replica, scenario) for replica in build_replicas(scenario.engine, scenario.replicas)]
    results: list[RequestResult] = []
    for batch in batches(scenario):
        if batch[0].request.reset:
            for driver in drivers:
                driver.reset()
        for sending in batch:
            drivers[sending.replica].expect(sending)
        # All replicas step in turn, as if each had a GPU of its own.
        while busy := [driver for driver in drivers if driver.busy]:
            for driver in busy:
                driver.step()
        results.extend(drivers[sending.replica].result(sending.id) for sending in batch)
        pace()
    return RunResult(results, [driver.replica_result() for driver in drivers])


class _Driver:
    """The loop of one engine core: its scheduler, and the steps whose output it has not been given yet."""

    def __init__(self, replica: Replica, scenario: Scenario) -> None:
        self._scheduler = replica.scheduler
        self._maker = RequestMaker(replica, scenario.engine.vocabulary)
        self._observer = Observer(replica.scheduler, scenario.observe_cache)
        self._queue_size = replica.queue_size
        self._queue: deque[tuple[Any, Any]] = deque()
        self._scenario = scenario
        self._expected: list[tuple[int, Sending]] = []
        self._progress: dict[str, _Progress] = {}
        self._idle = 0
        self._stuck = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to schedule or to finish."""
        return bool(self._queue or self._expected) or self._scheduler.has_requests()

    def expect(self, sending: Sending) -> None:
        """Hand a request to the scheduler once its delay is over."""
        due = self._observer.steps + sending.request.delay
        bisect.insort(self._expected, (due, sending), key=lambda expected: expected[0])

    def reset(self) -> None:
        """Clear the prefix cache."""
        if not self._scheduler.reset_prefix_cache():
            raise LabError("reset: vLLM does not clear its prefix cache, since blocks are still in use")
        self._observer.reset()

    def result(self, sending: str) -> RequestResult:
        """Return what vLLM said of a sending that has ended, and forget it: a trace has more tokens than memory."""
        return self._progress.pop(sending).result()

    def replica_result(self) -> ReplicaResult:
        """Return what was seen of the scheduler as a whole."""
        return self._observer.result()

    def _arrive(self) -> None:
        now = self._observer.steps
        # With nothing else to do time passes at once.
        idle = not self._queue and not self._scheduler.has_requests()
        last = max(now, self._expected[0][0]) if idle and self._expected else now
        while self._expected and self._expected[0][0] <= last:
            _, sending = self._expected.pop(0)
            request = self._maker.make(sending)
            self._progress[sending.id] = _Progress(sending, request, now)
            self._scheduler.add_request(request)

    def _abort(self) -> None:
        from vllm.v1.request import RequestStatus

        now = self._observer.steps
        for name in list(self._scheduler.requests):
            progress = self._progress.get(name)
            after = progress.sending.request.abort_after if progress else None
            if progress and after is not None and now - progress.since >= after:
                self._scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """Schedule a step, and give the scheduler the output of the oldest one once the queue is full."""
        scheduler = self._scheduler
        self._arrive()
        self._abort()
        if scheduler.has_requests():
            step = scheduler.schedule()
            self._observer.scheduled(step)
            self._queue.append((step, self._execute(step)))
            scheduled = step.total_num_scheduled_tokens > 0
            self._note(step, scheduled)
            if len(self._queue) < self._queue_size and (scheduled or scheduler.has_requests()):
                return
        if not self._queue:
            return
        step, result = self._queue.popleft()
        self._count_drafts(step, result)
        outputs = scheduler.update_from_output(step, result)
        self._observer.updated(outputs)
        self._count_prefill(outputs)
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
            sampled.append(self._output(name, start, count))
        return known(
            ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=transferred(step),
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
        tokens = self._output(name, start, speculative.num_speculative_tokens)
        right = speculative.accepted_tokens
        return tokens[:right] + [_other(token, self._scenario.engine.vocabulary) for token in tokens[right:]]

    @property
    def _accepted_tokens(self) -> int:
        speculative = self._scenario.engine.speculative
        return speculative.accepted_tokens if speculative else 0

    def _output(self, name: str, start: int, count: int) -> list[int]:
        """Return `count` of the tokens that a request generates, from number `start` on."""
        tokens = output(name, start + count, self._scenario.engine.vocabulary)[start:]
        stop = self._progress[name].sending.request.stop_after
        if stop is not None and start < stop <= start + count:
            tokens[stop - 1 - start] = STOP
        return tokens

    def _count_drafts(self, step: Any, result: Any) -> None:
        """Count drafts as vLLM does, of requests that have not ended meanwhile, before it cuts what is too long."""
        for name, drafts in step.scheduled_spec_decode_tokens.items():
            sampled = result.sampled_token_ids[result.req_id_to_index[name]]
            if sampled and name in self._scheduler.requests:
                self._progress[name].drafted += len(drafts)
                self._progress[name].accepted += len(sampled) - 1

    def _count_prefill(self, outputs: Any) -> None:
        """Keep what vLLM says of where the tokens of the first admission came from."""
        for client in outputs.values():
            for each in client.outputs:
                if each.prefill_stats is not None:
                    self._progress[each.request_id].local = each.prefill_stats.num_local_cached_tokens
                    self._progress[each.request_id].external = each.prefill_stats.num_external_cached_tokens

    def _note(self, step: Any, scheduled: bool) -> None:
        """Keep what the step says of each request, and stop when nothing comes of it any more."""
        for new in step.scheduled_new_reqs:
            progress = self._progress[new.req_id]
            progress.hit = new.num_computed_tokens
            progress.admitted = self._observer.steps
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
            raise LabError(self._what_is_stuck())

    def _waiting(self) -> list[str]:
        return [name for name in self._scheduler.requests if name in self._progress]

    def _patience(self) -> int:
        """Return how many steps may pass without a new token: all preempted requests may prefill again."""
        engine = self._scenario.engine
        tokens = sum(int(self._progress[name].request.num_tokens) for name in self._waiting())
        # A mamba prefill may be cut at every block.
        return 100 + 4 * (tokens // min(engine.max_num_batched_tokens, min(engine.block_sizes())) + 1)

    def _what_is_stuck(self) -> str:
        """Return a sentence on why nothing comes of the steps any more: requests that do not fit, or a connector."""
        ended = [name for name, request in self._scheduler.requests.items() if request.is_finished()]
        waiting = [name for name in self._waiting() if name not in ended]
        if waiting:
            return self._too_small(waiting)
        if ended:
            kept = f"the KV connector keeps the blocks of {', '.join(ended[:4])} after the end, and lets go of none"
        else:
            kept = "all requests have ended, and the KV connector says that it still has transfers to do"
        return f"engine.connector: {kept}: in the lab there is no worker that would do them, so vLLM waits forever"

    def _too_small(self, waiting: Sequence[str]) -> str:
        lengths = ", ".join(f"{name} ({self._progress[name].request.num_tokens} tokens)" for name in waiting[:4])
        blocks = self._scenario.engine.num_gpu_blocks
        return (
            f"engine.num_gpu_blocks: a pool of {blocks} blocks is too small for {lengths}: vLLM schedules nothing "
            "more; give it more blocks or send shorter requests"
        )


def _other(token: int, vocabulary: int) -> int:
    """Return a token that is not `token`."""
    return SPECIAL + (token - SPECIAL + 1) % (vocabulary - SPECIAL)
