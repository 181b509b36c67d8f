"""The hooks on scheduler, engine core and workers. Each calls the original once and hands its result back untouched.

A hook copies a few numbers and references into the ring and leaves; `pack` makes records of them elsewhere. Nothing
here runs per block of the pool or per running request.
"""

from time import time_ns
from typing import Any

from otel_cache.bindings import pack
from otel_cache.bindings.context import Context, Function
from otel_cache.bindings.probe import around, extractor
from otel_cache.bindings.replica import ATTRIBUTE, Replica
from otel_cache.faults import swallow

STAMP = "otel_cache_step"
"""Attribute of a SchedulerOutput: (step, context of its span, replica id). Workers and the update get it back."""


def schedule(original: Function, context: Context) -> Function:
    """Wrap `Scheduler.schedule`: a record per step, and the scheduler's first sight."""
    gate = context.gate

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica: Any = getattr(self, ATTRIBUTE, None)
        if replica is None:
            try:
                replica = _attach(self, context)
            except Exception as error:
                swallow("reading a scheduler's settings", error)
                replica = False
                setattr(self, ATTRIBUTE, replica)
        start = time_ns()
        gate.busy = True
        try:
            output = original(self, *args, **kwargs)
        finally:
            gate.busy = False
        if replica is not False:
            try:
                _step(replica, self, output, start, context)
            except Exception as error:
                swallow("the step hook", error)
        return output

    return wrapper


def _attach(scheduler: Any, context: Context) -> Replica:
    replica = context.attach(scheduler)
    context.emit((pack.announce, replica, time_ns()))
    return replica


def _step(replica: Replica, scheduler: Any, output: Any, start: int, context: Context) -> None:
    replica.steps = index = replica.steps + 1
    span = (replica.contexts or replica.draw_contexts()).pop()
    setattr(output, STAMP, (index, span, replica.id))
    free = replica.pool.free_block_queue.num_free_blocks
    running, waiting = len(scheduler.running), len(scheduler.waiting)
    now = time_ns()
    context.emit((pack.step, replica, output, index, span, start, now, running, waiting, free))
    context.gate.scheduled()


def update(original: Function, context: Context) -> Function:
    """Wrap `Scheduler.update_from_output`: when a step's execution was over, and what was sampled."""
    gate = context.gate

    def before(self: Any, output: Any, sampled: Any) -> tuple[Replica, int] | None:
        replica = getattr(self, ATTRIBUTE, None)
        if not replica:
            return None
        gate.busy = True
        start = time_ns()
        try:
            # vLLM cuts what lies beyond a request's end, and says within the call that the request has ended.
            if drafts := output.scheduled_spec_decode_tokens:
                counts = list(map(len, sampled.sampled_token_ids))
                context.emit((pack.verified, replica, drafts, sampled.req_id_to_index, counts))
        except Exception as error:
            swallow("the update hook", error)
        return replica, start

    def after(found: tuple[Replica, int], self: Any, output: Any, sampled: Any) -> None:
        gate.busy = False
        try:
            replica, start = found
            stamp = getattr(output, STAMP, None)
            if stamp is not None:
                context.emit((pack.done, replica, stamp[0], start, time_ns()))
        except Exception as error:
            swallow("the update hook", error)

    return around(original, before, after, "self", "scheduler_output", "model_runner_output")


def finished(original: Function, context: Context) -> Function:
    """Wrap `Scheduler._free_request`: a request has ended, whatever ended it."""
    request_of = extractor(original, "request")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        replica = getattr(self, ATTRIBUTE, None)
        if replica:
            try:
                context.emit((pack.finished, replica, *request_of(self, *args, **kwargs), time_ns()))
            except Exception as error:
                swallow("the finish hook", error)
        return result

    return wrapper


def shutdown(original: Function, context: Context) -> Function:
    """Wrap `EngineCore.shutdown`: what was captured goes out before the process may be killed."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            context.flush()
        except Exception as error:
            swallow("the shutdown hook", error)
        return original(self, *args, **kwargs)

    return wrapper


def execute(original: Function, context: Context) -> Function:
    """Wrap `WorkerWrapperBase.execute_model`: a worker ran a step, on the host's clock."""
    output_of = extractor(original, "scheduler_output")

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time_ns()
        result = original(self, *args, **kwargs)
        try:
            (output,) = output_of(self, *args, **kwargs)
            stamp = getattr(output, STAMP, None)
            # A step that scheduled nothing has no span either.
            if stamp is not None and output.total_num_scheduled_tokens:
                index, span, replica_id = stamp
                worker = getattr(self, ATTRIBUTE, None)
                if worker is None:
                    worker = context.employ(self, replica_id)
                    context.emit((pack.announce, worker, start))
                context.emit((pack.executed, worker, index, span, start, time_ns()))
        except Exception as error:
            swallow("the worker hook", error)
        return result

    return wrapper
