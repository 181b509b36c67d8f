"""One OpenAI-compatible server: what it serves, its tokenizer, its metrics, and completions read to their end.

Whatever can go wrong on the way becomes a `ProbeError` that says what is missing.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from analyzers.http_failures import CONNECT_SECONDS, Advice, describe_failure
from otel_cache.errors import ProbeError, UsageError

MAX_SAYS = 300
API = "/v1"
_ADVICE = Advice(
    silent="no whole answer within {seconds}: the server is slow, stuck or busy; give it more time by --timeout",
    authority="name the file of its authority's certificates in SSL_CERT_FILE",
    nobody="is the server up, and this its port?",
    broken="does a server for HTTP listen there?",
)


class RefusedError(ProbeError):
    """The server answers, and refuses the request itself (400, 404, 422): another form of it may be taken."""


@dataclass(frozen=True)
class Model:
    """A model that the server serves.

    Attributes:
        name: what requests call it.
        max_tokens: the longest prompt and answer together; None: the server does not say.
        adapter: it is an adapter on another model.

    """

    name: str
    max_tokens: int | None
    adapter: bool


@dataclass(frozen=True)
class Answer:
    """A completion, read to its end.

    Attributes:
        request_id: the API's id of the request, "" where it gives none.
        text: what was generated.
        token_ids: the same as token ids; None where the server does not give them.
        time_to_first_token: seconds from sending the request to the first token.
        duration: seconds from sending it to the end of the answer.
        prompt_tokens, output_tokens, cached_tokens: as the usage figures say; None where they do not.

    """

    request_id: str
    text: str
    token_ids: tuple[int, ...] | None
    time_to_first_token: float
    duration: float
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


class Server:
    """A server at `url`. It is asked one thing at a time."""

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        """Open nothing yet; no request may take more than `timeout` seconds.

        Raises:
            UsageError: the URL is none.

        """
        self.url = url.rstrip("/").removesuffix(API)
        self._timeout = timeout
        self._key = api_key
        try:
            parsed = httpx.URL(self.url)
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise httpx.InvalidURL("not http")
            self._client = httpx.Client(
                headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            )
        except (httpx.InvalidURL, UnicodeError):
            raise UsageError(f"{url}: not the URL of a server; give one such as http://localhost:8000") from None
        except OSError as error:
            raise UsageError(f"SSL_CERT_FILE: its certificates cannot be read ({error})") from error
        except (ValueError, ImportError) as error:
            raise UsageError(f"a proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names is none ({error})") from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def models(self) -> list[Model]:
        """Return what the server serves.

        Raises:
            ProbeError: it is down, slow, wants authentication, or is no OpenAI-compatible server.

        """
        body = self._json("GET", "/v1/models")
        listed = body.get("data") if isinstance(body, dict) else None
        if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
            raise self._no_server_of_ours("/v1/models lists no model")
        return [
            Model(str(one.get("id")), _integer(one.get("max_model_len")), one.get("parent") is not None)
            for one in listed
        ]

    def tokenize(self, model: str, text: str) -> list[int] | None:
        """Return the token ids of `text` without special tokens; None where the server has no tokenizer to ask."""
        try:
            body = self._json("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        except ProbeError:
            return None
        tokens = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            return None
        return tokens

    def metrics(self) -> str | None:
        """Return the page /metrics; None where there is none."""
        try:
            response = self._client.get(f"{self.url}/metrics", follow_redirects=True)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == httpx.codes.OK else None

    def complete(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        """Send a completion request and read its stream to the end.

        Raises:
            RefusedError: the server refuses the request; says what it says.
            ProbeError: it is down, slow or busy, or its answer is none.

        """
        begin = time.perf_counter()
        stream = _Stream(begin)
        try:
            with self._client.stream("POST", f"{self.url}/v1/completions", json=body, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    self._refuse(response, "/v1/completions")
                for event in _events(response.iter_lines()):
                    stream.take(event)
                    if time.perf_counter() - begin > self._timeout:
                        raise httpx.ReadTimeout("the whole request")
        except httpx.HTTPError as error:
            raise ProbeError(describe_failure(error, self.url, self._timeout, _ADVICE)) from error
        except ValueError as error:
            raise self._no_server_of_ours(f"the answer to a completion is not a stream of events ({error})") from error
        if stream.error:
            raise ProbeError(f"{self.url}: the request failed in the server: {stream.error[:MAX_SAYS]}")
        answer = stream.answer(time.perf_counter())
        if answer is None:
            raise self._no_server_of_ours("a completion came without a single token")
        return answer

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = self._client.request(method, f"{self.url}{path}", json=body)
        except httpx.HTTPError as error:
            raise ProbeError(describe_failure(error, self.url, self._timeout, _ADVICE)) from error
        if response.status_code != httpx.codes.OK:
            self._refuse(response, path)
        try:
            return response.json()
        except ValueError as error:
            raise self._no_server_of_ours(f"{path} answers something that is no JSON") from error

    def _refuse(self, response: httpx.Response, path: str) -> None:
        """Raise the error that a status stands for."""
        status, says = response.status_code, _says(response)
        told = f": {says}" if says else ""
        if status in (401, 403):
            raise ProbeError(
                f"{self.url} refuses the key that it was given ({status}{told})"
                if self._key
                else f"{self.url} wants authentication ({status}): give a key by --api-key-file or OPENAI_API_KEY"
            )
        if status == 429:
            raise ProbeError(f"{self.url} is busy (429{told}); probe it when nothing else uses it")
        if 300 <= status < 400:
            raise ProbeError(f"{self.url} redirects {path} to {response.headers.get('location')}: give that URL")
        if status >= 500:
            raise ProbeError(f"{self.url} does not work at the moment ({path}: {status}{told}); see the server's log")
        if path == "/v1/models":
            raise self._no_server_of_ours(f"/v1/models answers {status}")
        raise RefusedError(f"{self.url} refuses the request ({path}: {status}{told})")

    def _no_server_of_ours(self, what: str) -> ProbeError:
        return ProbeError(f"{self.url} is no OpenAI-compatible server: {what}; give its root, without a path")


class _Stream:
    """Gathers the events of a stream that began at `begin`."""

    def __init__(self, begin: float) -> None:
        self.error = ""
        self._begin = begin
        self._first: float | None = None
        self._id = ""
        self._text: list[str] = []
        self._ids: list[int] | None = None
        self._usage: Mapping[str, Any] = {}

    def take(self, event: Any) -> None:
        if not isinstance(event, dict):
            raise ValueError("an event that is no object")
        if event.get("error"):
            error = event["error"]
            self.error = str(error.get("message") if isinstance(error, dict) else error)
            return
        self._id = str(event.get("id") or self._id)
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        choices = event.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError("choices that are no objects")
        for choice in choices:
            text, ids = choice.get("text") or "", choice.get("token_ids")
            if (text or ids or choice.get("finish_reason")) and self._first is None:
                self._first = time.perf_counter()
            self._text.append(str(text))
            if isinstance(ids, list):
                self._ids = (self._ids or []) + ids

    def answer(self, end: float) -> Answer | None:
        """Return what came; None where no token did."""
        if self._first is None:
            return None
        details = self._usage.get("prompt_tokens_details")
        return Answer(
            request_id=self._id,
            text="".join(self._text),
            token_ids=None if self._ids is None else tuple(self._ids),
            time_to_first_token=self._first - self._begin,
            duration=end - self._begin,
            prompt_tokens=_integer(self._usage.get("prompt_tokens")),
            output_tokens=_integer(self._usage.get("completion_tokens")),
            cached_tokens=_integer(details.get("cached_tokens")) if isinstance(details, dict) else None,
        )


def _events(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        field, _, value = line.partition(":")
        if field == "data" and value.strip() != "[DONE]":
            yield json.loads(value)


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _says(response: httpx.Response) -> str:
    """Return what an answer's body says is wrong, in one line."""
    try:
        body = response.json()
    except ValueError:
        return ""
    if isinstance(body, dict):
        error = body.get("error", body)
        said = error.get("message") or error.get("detail") if isinstance(error, dict) else error
        return " ".join(str(said or "").split())[:MAX_SAYS]
    return ""


def choose_model(models: Sequence[Model], wanted: str | None, url: str) -> Model:
    """Return the model of this name; the first that is no adapter where none is named.

    Raises:
        ProbeError: the server does not serve it; names what it serves.

    """
    if wanted is None:
        return next((model for model in models if not model.adapter), models[0])
    for model in models:
        if model.name == wanted:
            return model
    served = ", ".join(model.name for model in models[:10])
    raise ProbeError(f"{url} serves no model {wanted}; it serves {served}: give one of them by --model")
