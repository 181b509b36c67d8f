"""What a gateway needs to let anybody in: a certificate and a token."""

from pathlib import Path

from tests.certificates import make_certificate

TOKEN = "let-me-in"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
"""OTLP's method for traces."""


def certify(folder: Path, token: str = TOKEN) -> tuple[Path, dict[str, str]]:
    """Write a certificate for the loopback that signs itself, its key, and a file with `token`.

    Return the certificate, and the variables that tell a gateway of all three.
    """
    certificate, key = make_certificate()
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)
    (folder / "token").write_text(f"{token}\n")
    return folder / "tls.crt", {
        "OTEL_CACHE_COLLECTOR_CERTIFICATE": str(folder / "tls.crt"),
        "OTEL_CACHE_COLLECTOR_KEY": str(folder / "tls.key"),
        "OTEL_CACHE_COLLECTOR_TOKEN_FILE": str(folder / "token"),
    }
