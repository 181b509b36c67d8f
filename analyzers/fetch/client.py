"""HTTP to a back end: token, TLS, patience, and a sentence for everything that goes wrong on the way.

Neither the token nor what a server makes of it is in any message.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from analyzers.http_failures import CONNECT_SECONDS, Advice, describe_failure
from otel_cache.errors import FetchError, UsageError
from otel_cache.package import VERSION

ATTEMPTS = 5
FIRST_WAIT = 0.5
"""Seconds until the second attempt; each wait is twice the one before."""
MAX_WAIT = 30.0
"""A server that asks for more patience is asked again after so many seconds all the same."""
BUSY = frozenset([429, 502, 503, 504])
MAX_SAYS = 300
_ADVICE = Advice(
    silent="silent for {seconds}; ask for less by --since and --limit, or give it more time by --timeout",
    authority="name the file of its authority's certificates by --ca-file",
    nobody="is the back end up, and this its port?",
    broken="is this the port of the query API (Jaeger: 16686, Tempo: 3200) and not that of OTLP, and the URL's http or "
    "https right?",
)
_lines = msgspec.json.Decoder()


@dataclass(frozen=True)
class Answer:
    """What came back, with a status that is neither a redirection nor about who asks."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the decoded body; None where it is no JSON.

        Values that follow one another, as a gateway streams them, come as a list.
        """
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                return _lines.decode_lines(self.body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return None

    def says(self) -> str:
        """Return what the body says is wrong, in one line; "" for a web page."""
        body = self.json()
        if isinstance(body, dict):
            error = body.get("error") or next(iter(body.get("errors") or ()), None) or body
            body = error.get("message") or error.get("msg") if isinstance(error, dict) else error
        elif self.body.lstrip()[:1] != b"<":
            body = self.body.decode(errors="replace")
        return " ".join(body.split())[:MAX_SAYS] if isinstance(body, str) else ""


@dataclass(frozen=True)
class Access:
    """How a back end lets one in.

    Attributes:
        token: bearer token, or None.
        headers: further headers, such as the tenant's.
        ca_file: certificates to verify the server with, in place of the usual ones.
        timeout: seconds that the server may be silent.

    """

    token: str | None = None
    headers: Mapping[str, str] | None = None
    ca_file: str | None = None
    timeout: float = 60.0


class Client:
    """A server at `url`, asked by GET alone. Threads may share it."""

    def __init__(self, url: str, access: Access, sleep: Callable[[float], None] = time.sleep) -> None:
        """Open nothing yet.

        Raises:
            UsageError: the URL is none, or holds a password; the token or the certificates cannot be used.

        """
        self.url = _checked(url)
        self._access = access
        self._sleep = sleep
        self._answered = False
        try:
            self._client = httpx.Client(
                headers={"User-Agent": f"otel-cache/{VERSION}", "Accept": "application/json", **_headers(access)},
                timeout=httpx.Timeout(access.timeout, connect=min(access.timeout, CONNECT_SECONDS)),
                verify=ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True,
            )
        except OSError as error:
            where = f"--ca-file {access.ca_file}" if access.ca_file else "SSL_CERT_FILE"
            raise UsageError(f"{where}: no certificates can be read there ({error.strerror or error})") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, parameters: Mapping[str, str | int] | None = None) -> Answer:
        """Return the answer to GET `path`; a server that is busy, or a torn connection, is asked again.

        Raises:
            FetchError: nobody answers, the connection breaks, who asks is refused, or the server stays busy.

        """
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS
            try:
                response = self._client.get(self.url + path, params=parameters)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # Whoever has never answered is likely not there; later it may be a restart.
                if last or not self._answered:
                    raise FetchError(describe_failure(error, self.url, self._access.timeout, _ADVICE)) from error
                self._sleep(FIRST_WAIT * 2 ** (attempt - 1))
                continue
            self._answered = True
            if response.status_code not in BUSY:
                return self._taken(response, path)
            if last:
                told = Answer(response.status_code, response.content).says()
                raise FetchError(
                    f"{self.url}{path}: {response.status_code} after {ATTEMPTS} attempts"
                    f"{f' ({told})' if told else ''}; ask for less by --since and --limit, or later"
                )
            self._sleep(_asked_wait(response, FIRST_WAIT * 2 ** (attempt - 1)))
        raise AssertionError("unreachable")

    def _taken(self, response: httpx.Response, path: str) -> Answer:
        status = response.status_code
        if status in (401, 403):
            says = Answer(status, response.content).says()
            token = "the bearer token that it was given" if self._access.token else "to be asked without a bearer token"
            todo = (
                "name the tenant by --tenant"
                if "org id" in says or "tenant" in says.lower()
                else "give one that is valid by --bearer-token-file or OTEL_CACHE_BEARER_TOKEN"
            )
            raise FetchError(f"{self.url} refuses {token} ({status}{f': {says}' if says else ''}); {todo}")
        if 300 <= status < 400:
            raise FetchError(
                f"{self.url}{path}: redirected to {response.headers.get('location')}; give the URL that answers "
                "itself, or a bearer token where that is a page to log in"
            )
        return Answer(status, response.content)


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise httpx.InvalidURL("not http")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise UsageError(f"{url}: not the URL of a server; give one such as http://localhost:16686") from None
    if parsed.userinfo:
        raise UsageError(
            f"the URL of {parsed.host} holds a name or a password, which every process list shows; give a token by "
            "--bearer-token-file or OTEL_CACHE_BEARER_TOKEN"
        )
    if parsed.query or parsed.fragment:
        raise UsageError(f"{url}: give the URL of the back end alone, without ? and #")
    return str(parsed).rstrip("/")


def _headers(access: Access) -> dict[str, str]:
    headers = dict(access.headers or {})
    if access.token:
        if not access.token.isascii() or not access.token.isprintable():
            raise UsageError("the bearer token holds characters that no header can; is it the right file?")
        headers["Authorization"] = f"Bearer {access.token}"
    return headers


def _asked_wait(response: httpx.Response, otherwise: float) -> float:
    try:
        return min(max(float(response.headers["retry-after"]), 0.0), MAX_WAIT)
    except (KeyError, ValueError):
        return otherwise
