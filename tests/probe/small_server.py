"""A small OpenAI-compatible server that really caches prefixes, and can lie, be slow or lack what servers lack.

What vLLM cannot be made to do on purpose, such as counting wrongly, is tried with it.
"""

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Small:
    """How the server is.

    Attributes:
        block: hits end at multiples of it.
        late: how often a prefix has to be computed before it is found.
        token_seconds: time that computing a token takes.
        tokens_per_word, base: how its tokenizer counts texts.
        system: tokens that it puts in front of every prompt, as some servers do.
        moving: its counters move by themselves.
        counts, details, ids, tokenizer, metrics, extras: whether it has usage figures, cached tokens in them, takes
            token ids, has a tokenizer, counters, takes vLLM's parameters.
        sparse: it has cached tokens in them only where there are any.
        says_zero: it says that nothing is cached, whatever is.
        usage_only_lies: only its usage figures do so.
        status: it answers completions with this instead.
        delay: seconds before it answers anything.
        forgets: answers to the same prompt differ.

    """

    block: int = 16
    caching: bool = True
    late: int = 1
    token_seconds: float = 0.0
    tokens_per_word: int = 2
    base: int = 1
    system: int = 0
    limit: int | None = 8192
    running: int = 0
    moving: bool = False
    counts: bool = True
    details: bool = True
    sparse: bool = False
    ids: bool = True
    tokenizer: bool = True
    metrics: bool = True
    extras: bool = True
    says_zero: bool = False
    usage_only_lies: bool = False
    key: str = ""
    status: int = 200
    delay: float = 0.0
    forgets: bool = False
    speculation: bool = False
    totals: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    computed: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def serve(self, prompt: Sequence[Any]) -> tuple[int, int]:
        """Return how many tokens of a prompt there are, and how many of them were cached; cache it."""
        tokens = [*(("system", index) for index in range(self.system)), *prompt]
        ends = range(self.block, len(tokens) + 1, self.block)
        hit = 0
        for end in ends:
            if self.caching and end < len(tokens) and self.computed[tuple(tokens[:end])] >= self.late:
                hit = end
        for end in ends:
            self.computed[tuple(tokens[:end])] += 1
        return len(tokens), hit

    def tokens(self, prompt: list[int] | str) -> list[Any]:
        """Return the tokens of a prompt."""
        if isinstance(prompt, list):
            return list(prompt)
        words = [(word, part) for word in prompt.split() for part in range(self.tokens_per_word)]
        return ["begin"] * self.base + words

    def page(self) -> str:
        """Return the page /metrics."""
        if self.moving:
            self.totals["request_success"] += 1
        lines = [f"vllm:num_requests_running {self.running}", "vllm:num_requests_waiting 0"]
        names = ["prefix_cache_queries", "prefix_cache_hits", "request_success", "generation_tokens"]
        names += ["spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"] if self.speculation else []
        lines += [f'vllm:{name}_total{{engine="0"}} {float(self.totals[name])}' for name in names]
        return "\n".join(lines) + "\n"


class SmallServer:
    """Serves `small` on a port of its own."""

    def __init__(self, small: Small) -> None:
        self.small = small

        class Handler(_Handler):
            pass

        Handler.small = small
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> "SmallServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    small: Small
    wbufsize = -1

    def do_GET(self) -> None:
        small = self.small
        if not self._allowed():
            return
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "small", "max_model_len": small.limit, "parent": None}]})
        elif self.path == "/metrics" and small.metrics:
            self._send(200, small.page().encode())
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        small = self.small
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if self.path == "/tokenize" and small.tokenizer:
            self._answer(200, {"tokens": [1000 + index for index, _ in enumerate(body["prompt"].split())]})
        elif self.path != "/v1/completions":
            self._answer(404, {"detail": "Not Found"})
        elif small.status != 200:
            self._answer(small.status, {"error": {"message": "on purpose"}})
        elif isinstance(body["prompt"], list) and not small.ids:
            self._answer(422, {"error": {"message": "prompt: a text is wanted"}})
        elif "ignore_eos" in body and not small.extras:
            self._answer(400, {"error": {"message": "unknown parameter ignore_eos"}})
        else:
            small.bodies.append(body)
            self._complete(body)

    def _complete(self, body: dict[str, Any]) -> None:
        small = self.small
        total, hit = small.serve(small.tokens(body["prompt"]))
        time.sleep((total - hit) * small.token_seconds)
        said = 0 if small.says_zero else hit
        output = body["max_tokens"]
        start = len(small.bodies) if small.forgets else 0
        events: list[dict[str, Any]] = []
        for index in range(start, start + output):
            choice: dict[str, Any] = {"index": 0, "text": f" w{index}"}
            events.append({"id": "cmpl-small", "choices": [choice | ({"token_ids": [index]} if small.extras else {})]})
        usage: dict[str, Any] = {"prompt_tokens": total, "completion_tokens": output}
        if small.details and (said or not small.sparse):
            usage["prompt_tokens_details"] = {"cached_tokens": 0 if small.usage_only_lies else said}
        if small.counts:
            events.append({"id": "cmpl-small", "choices": [], "usage": usage})
        small.totals.update(
            prefix_cache_queries=total if small.caching else 0,
            prefix_cache_hits=said,
            request_success=1,
            generation_tokens=output,
            spec_decode_num_draft_tokens=2 * output,
            spec_decode_num_accepted_tokens=output,
        )
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        self._send(200, "".join(lines).encode(), "text/event-stream")

    def _allowed(self) -> bool:
        time.sleep(self.small.delay)
        if self.small.key and self.headers.get("Authorization") != f"Bearer {self.small.key}":
            self._answer(401, {"error": "Unauthorized"})
            return False
        return True

    def _answer(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
