"""What went wrong on the way to a server, in a sentence."""

import ssl
from dataclasses import dataclass

import httpx

CONNECT_SECONDS = 10.0
"""Longest wait for a connection."""


@dataclass(frozen=True)
class Advice:
    """What to do, for the failures whose answer differs from server to server.

    Attributes:
        silent: it took longer than it was given; `{seconds}` stands for how long that is.
        authority: its certificate is not trusted.
        nobody: nothing listens there.
        broken: something listens, and breaks the connection.

    """

    silent: str
    authority: str
    nobody: str
    broken: str


def describe_failure(error: Exception, url: str, timeout: float, advice: Advice) -> str:
    """Return why the request to `url`, which had `timeout` seconds, has no answer, and what to do."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return f"{url}: no connection within {min(timeout, CONNECT_SECONDS):g} s"
    if isinstance(error, httpx.TimeoutException):
        return f"{url}: {advice.silent.format(seconds=f'{timeout:g} s')}"
    if _is_tls(error):
        todo = "does the server speak TLS there? If not, the URL begins with http://"
        if "CERTIFICATE_VERIFY" in reason.upper():
            todo = advice.authority
        return f"{url}: no TLS connection ({reason}); {todo}"
    if isinstance(error, httpx.ConnectError):
        return f"{url}: nobody answers there ({reason}); {advice.nobody}"
    return f"{url}: the connection broke ({reason}); {advice.broken}"


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
