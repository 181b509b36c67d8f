"""JSON that is no line of an OTLP file, but what a tracing back end let somebody download, as OTLP JSON.

Jaeger's page gives `{"data": [trace, ...]}`, Tempo `{"batches": ...}` or `{"trace": {"resourceSpans": ...}}`.
"""

from typing import Any

import msgspec

from analyzers.readers import jaeger_json, otlp_dialects

_JAEGER = "data"


def to_otlp(document: bytes) -> list[bytes]:
    """Return the traces of a document as OTLP JSON, one by one; none where it is something else.

    Raises:
        msgspec.MsgspecError, RecursionError, UnicodeDecodeError: it is not JSON.

    """
    decoded = msgspec.json.decode(document)
    return [msgspec.json.encode(each) for each in _converted(decoded)]


def _converted(decoded: Any) -> list[dict[str, Any]]:
    if jaeger_json.is_trace(decoded):
        return [jaeger_json.to_otlp(decoded)]
    if isinstance(decoded, list):
        return [each for trace in decoded for each in _converted(trace)]
    if not isinstance(decoded, dict):
        return []
    if isinstance(decoded.get(_JAEGER), list):
        return _converted(decoded[_JAEGER])
    otlp = otlp_dialects.to_otlp(decoded) if decoded else None
    return [] if otlp is None else [otlp]
