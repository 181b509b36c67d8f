"""The certificate that docs/operations.md makes, by its own commands: what gateways show and agents verify."""

import re
import ssl
import subprocess
from pathlib import Path

import pytest
from docs.markdown import blocks, read

NAME = "otel-cache-gateway"
(COMMANDS,) = [block for block in blocks(read("docs/operations.md"), "sh") if block.startswith("openssl ")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the files."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(["sh", "-ec", COMMANDS], cwd=folder, capture_output=True, timeout=60, check=True)
    return folder


def shake_hands(made: Path, name: str) -> None:
    """Let a client that trusts the authority call a server with the certificate by `name`."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(made / "tls.crt", made / "tls.key")
    client_side = ssl.create_default_context(cafile=str(made / "ca.crt"))
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"


def test_agents_trust_it(made: Path) -> None:
    """Under the name that the agents are told to expect, and under no other."""
    shake_hands(made, NAME)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(made, "another")


def test_it_is_what_the_secret_is_made_of(made: Path) -> None:
    """The files are those that the secret takes, and the authority's key is none of them."""
    taken = set(re.findall(r"--from-file=(\S+)", read("docs/operations.md")))
    assert taken == {path.name for path in made.iterdir()} - {"ca.key"}
