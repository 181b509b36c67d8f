"""A server under probe: requests to it, one at a time, each with what its counters and usage figures say of it."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from analyzers.probe.client import Answer, Model, Server, choose_model
from analyzers.probe.metrics import Counters, Delta, moved, parse_counters
from analyzers.probe.model import Observation, Send
from otel_cache.errors import ProbeError

EXTRAS: Mapping[str, Any] = {"ignore_eos": True, "return_token_ids": True}
"""vLLM's own parameters: answers of one length, and their token ids. Other servers may refuse them."""
SETTLE_SECONDS = 2.0
"""How long after an answer its counters may still be on their way."""
POLL_SECONDS = 0.05
QUIET_SECONDS = 1.0
"""How long counters are watched before the first request."""


class Session:
    """Asks one server, in one role.

    Attributes:
        model: what it serves.
        counters: its counters at the moment; None where it has none.
        extras: parameters beyond OpenAI's that it takes.

    """

    def __init__(self, server: Server, role: str, name: str, wanted: str | None, *, allow_traffic: bool) -> None:
        """Ask the server what it serves, and look whether somebody else uses it.

        Args:
            server: the server.
            role: what it is to the probe.
            name: begins the ids of this probe's requests.
            wanted: the model to ask; None: the first.
            allow_traffic: other requests are no reason to stop.

        Raises:
            ProbeError: it cannot be probed.

        """
        self.server = server
        self.role = role
        self.model: Model = choose_model(server.models(), wanted, server.url)
        self.counters = self._read()
        self.extras = EXTRAS
        self._allow_traffic = allow_traffic
        self._name = name
        self._number = 0
        if self.counters and not allow_traffic:
            self._expect_quiet(self.counters)

    def observe(self, send: Send, output_tokens: int) -> Observation:
        """Send a prompt, read the answer, and wait for its counters.

        Raises:
            ProbeError: as `Server.complete`; or somebody else's requests were served meanwhile.

        """
        trace = secrets.token_hex(16)
        answer = self.complete(send.prompt.body, output_tokens, trace)
        return Observation(send, answer, trace, self._settle())

    def complete(self, prompt: list[int] | str, output_tokens: int, trace: str | None = None) -> Answer:
        """Send a prompt as it is, and read the answer.

        Raises:
            RefusedError: the server refuses it.
            ProbeError: as `Server.complete`.

        """
        self._number += 1
        headers = {
            "X-Request-Id": f"{self._name}-{self._number}",
            "traceparent": f"00-{trace or secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        }
        body = {
            "model": self.model.name,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extras,
        }
        return self.server.complete(body, headers)

    def catch_up(self) -> None:
        """Take the counters as they are once the last request is counted."""
        self._settle()

    def _settle(self) -> Delta | None:
        """Return by how much the counters moved with the last request, once they have."""
        before = self.counters
        if before is None:
            return None
        deadline = time.monotonic() + SETTLE_SECONDS
        while (after := self._read()) is not None:
            delta = moved(before, after)
            settled = delta.finished is None or (delta.finished and (self._allow_traffic or not _at_work(after)))
            if settled or time.monotonic() >= deadline:
                self.counters = after
                if not self._allow_traffic and ((delta.finished or 0) > 1 or _at_work(after)):
                    raise self._busy("requests of somebody else were served during the probe")
                # Where others are served as well, what moved is not this request's.
                return delta if delta.finished in (None, 1) else None
            time.sleep(POLL_SECONDS)
        return None

    def _expect_quiet(self, before: Counters) -> None:
        if _at_work(before):
            raise self._busy(f"it is busy (requests running: {before.running or 0}, waiting: {before.waiting or 0})")
        time.sleep(QUIET_SECONDS)
        after = self._read()
        if after is not None:
            delta = moved(before, after)
            if _at_work(after) or delta.finished or delta.queries or delta.output_tokens:
                raise self._busy("its counters move by themselves: somebody else uses it")
            self.counters = after

    def _busy(self, what: str) -> ProbeError:
        return ProbeError(
            f"{self.server.url}: {what}. Figures would not be this probe's alone: take a server that nobody else "
            "uses, or say --allow-traffic"
        )

    def _read(self) -> Counters | None:
        page = self.server.metrics()
        return None if page is None else parse_counters(page)


def _at_work(counters: Counters) -> bool:
    return bool((counters.running or 0) + (counters.waiting or 0))
