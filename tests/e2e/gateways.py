"""What a gateway needs to let anybody in: a certificate and a token."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .programs import HOST

TOKEN = "let-me-in"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
"""OTLP's method for traces."""


def certify(folder: Path, token: str = TOKEN) -> tuple[Path, dict[str, str]]:
    """Write a certificate for the loopback that signs itself, its key, and a file with `token`.

    Return the certificate, and the variables that tell a gateway of all three.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names_of_it = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names_of_it), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.key").write_bytes(private)
    (folder / "token").write_text(f"{token}\n")
    return folder / "tls.crt", {
        "OTEL_CACHE_COLLECTOR_CERTIFICATE": str(folder / "tls.crt"),
        "OTEL_CACHE_COLLECTOR_KEY": str(folder / "tls.key"),
        "OTEL_CACHE_COLLECTOR_TOKEN_FILE": str(folder / "token"),
    }
