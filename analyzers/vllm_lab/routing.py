"""Which replica takes which request: the policies of routers, over the prompts of a workload."""

import random
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from analyzers.vllm_lab.scenario import LabRequest, sending_ids

Routing = Literal["round_robin", "sticky_prefix", "sticky_conversation", "random"]

STEP = 512
"""Tokens between the marks that prefixes are compared at, and at every end of a part."""
SHARE = 0.5
"""A prefix that covers less of a prompt than this does not decide: one that all share would fill one replica."""
SEED = 0


def routed(requests: Sequence[LabRequest], replicas: int, routing: Routing) -> list[LabRequest]:
    """Return the requests with the replica that `routing` chooses for each; one that names its own keeps it.

    `round_robin` takes the replicas in turn, `random` any of them, by a fixed seed. `sticky_prefix` takes the one that
    had the longest prefix of the prompt, if that covers half of it; `sticky_conversation` the one that had a whole
    prompt with which this one begins. Both fall back on the replica that was sent fewest tokens.
    """
    if replicas == 1 or routing == "round_robin":
        return list(requests)
    router = _Router(replicas, routing)
    return [
        sending if sending.replica is not None else msgspec.structs.replace(sending, replica=router.choose(sending))
        for sending in _sendings(requests)
    ]


def _sendings(requests: Sequence[LabRequest]) -> Iterator[LabRequest]:
    """Yield a request per sending, so that each can be routed on its own."""
    first = {request.id: sending_ids(request)[0] for request in requests}
    for request in requests:
        for name in sending_ids(request):
            follows = None if request.with_ is None else first[request.with_]
            yield msgspec.structs.replace(request, id=name, times=1, with_=follows)


class _Router:
    def __init__(self, replicas: int, routing: Routing) -> None:
        self._routing = routing
        self._random = random.Random(SEED)
        self._sent = [0] * replicas
        self._prefixes: dict[int, int] = {}
        self._prompts: dict[int, int] = {}

    def choose(self, request: LabRequest) -> int:
        """Return the replica for `request`, and remember that it had it."""
        marks = list(_marks(request))
        if self._routing == "random":
            # random() is promised never to change between versions; randrange and choice are not.
            replica = int(self._random.random() * len(self._sent))
        elif self._routing == "sticky_prefix":
            replica = self._sticky(marks, self._prefixes, SHARE * request.prompt_tokens)
        else:
            replica = self._sticky(marks, self._prompts, 0)
        self._sent[replica] += request.prompt_tokens
        self._prefixes.update((mark, replica) for _, mark in marks)
        whole = [mark for end, mark in marks if end % STEP == 0] or [mark for _, mark in marks]
        self._prompts[whole[-1]] = replica
        return replica

    def _sticky(self, marks: Sequence[tuple[int, int]], known: dict[int, int], least: float) -> int:
        for end, mark in reversed(marks):
            if end <= least:
                break
            if mark in known:
                return known[mark]
        return min(range(len(self._sent)), key=lambda replica: self._sent[replica])


def _marks(request: LabRequest) -> Iterator[tuple[int, int]]:
    """Yield (tokens, a number for the prefix that ends there), ascending."""
    mark, end = 0, 0
    for part in request.prompt:
        for offset in (*range(STEP, part.tokens, STEP), part.tokens):
            mark = hash((mark, part.segment, offset))
            yield end + offset, mark
        end += part.tokens
