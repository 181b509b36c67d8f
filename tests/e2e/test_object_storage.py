"""Parquet in object storage, read from a real server: the same reports as of files, and what is said where it fails."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from docs.examples import lines
from docs.markdown import blocks, read

from analyzers.experiments.inputs import SAME, load_work
from analyzers.readers.object_storage import OPTIONS

from .programs import HOST, ObjectStorage, Programs, free_port

EXAMPLE = Path(str(files("analyzers") / "examples" / "model_case.jsonl"))
PROGRAM = Path(sys.executable).with_name("otel-cache")
PATIENCE = 90.0
"""Seconds after which a failure must have been told, on any machine; usual are 1, and 20 where nobody answers."""
JUNK = 1 << 22
"""Bytes of a column that no report needs."""


@dataclass(frozen=True)
class Stored:
    """A bucket `traces` with `day/replica-0.parquet` and `-1`, and the same files in the folder `local`."""

    server: ObjectStorage
    local: Path
    home: Path

    @property
    def bucket(self) -> Path:
        """The folder that is the bucket."""
        return self.server.store / "traces"

    def run(self, *words: object, **environment: str | None) -> subprocess.CompletedProcess[str]:
        """Run `otel-cache` with the server's variables; `environment` changes them, None takes one away."""
        settings: dict[str, str | None] = {**os.environ, **self.server.variables, "HOME": str(self.home), **environment}
        return subprocess.run(
            [PROGRAM, *map(str, words)],
            env={name: value for name, value in settings.items() if value is not None},
            capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=self.home,
        )  # fmt: skip

    def report(self, *paths: object, **environment: str | None) -> dict[str, Any]:
        """Return the JSON report of what `paths` stand for."""
        done = self.run("analyze", *paths, "--format", "json", "--quiet", **environment)
        assert (done.returncode, done.stderr) == (0, "")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def failure(self, *words: object, **environment: str | None) -> str:
        """Return the one line that a command fails with."""
        done = self.run(*words, **environment)
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        return line


def of_another_replica(capture: str) -> str:
    """Return the example as a second replica would have recorded it: the same prompts, other identifiers."""
    other = capture.replace('"replica-0"', '"replica-1"')
    other = re.sub(r'("service.instance.id","value":\{"stringValue":")', r"\1of-the-other-", other)
    return re.sub(
        r'"(traceId|spanId|parentSpanId)":"([0-9a-f])', lambda id: f'"{id[1]}":"{15 - int(id[2], 16):x}', other
    )


@pytest.fixture(scope="module")
def stored(session_programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Two replicas' captures, converted, as files and in a bucket."""
    folder = tmp_path_factory.mktemp("captures")
    found = Stored(session_programs.objects(), folder / "day", folder / "home")
    found.local.mkdir()
    found.home.mkdir()
    text = EXAMPLE.read_text()
    for number, each in enumerate((text, of_another_replica(text))):
        lines_of_it, converted = folder / f"replica-{number}.jsonl", found.local / f"replica-{number}.parquet"
        lines_of_it.write_text(each)
        assert found.run("convert", lines_of_it, "--output", converted).returncode == 0
    shutil.copytree(found.local, found.bucket / "day")
    shutil.copy(folder / "replica-0.jsonl", found.bucket / "spans.jsonl")
    return found


def test_an_address_gives_the_report_of_its_files(stored: Stored) -> None:
    """One object, a folder with and without its slash, the bucket, patterns, several addresses, files beside them."""
    one, both = stored.report(stored.local / "replica-0.parquet"), stored.report(stored.local)
    assert [len(each["replicas"]) for each in (one, both)] == [1, 2]
    assert stored.report("s3://traces/day/replica-0.parquet") == one
    for address in ("day/", "day", "", "day/*.parquet", "**/replica-*.parquet", "day/replica-[01].parquet"):
        assert stored.report(f"s3://traces/{address}") == both, address
    assert stored.report("s3://traces") == both
    second = stored.local / "replica-1.parquet"
    assert stored.report("s3://traces/day/replica-0.parquet", second) == both
    assert stored.report("s3://traces/day/replica-1.parquet", "s3://traces/day/replica-0.parquet") == both


def test_the_other_commands(stored: Stored, tmp_path: Path) -> None:
    """A story, a conversion, a cache, which is not needed, and a comparison."""
    address, file = "s3://traces/day/replica-0.parquet", stored.local / "replica-0.parquet"
    told = stored.run("explain", "repeat-0", address)
    assert told.stdout == stored.run("explain", "repeat-0", file).stdout != ""
    assert stored.report(address, "--cache") == stored.report(file)
    assert list(stored.home.iterdir()) == []
    assert stored.run("convert", "s3://traces/day/", "--output", tmp_path / "day.parquet").returncode == 0
    assert stored.report(tmp_path / "day.parquet") == stored.report(stored.local)
    assert stored.run("diff", address, file).returncode == 0
    refused = stored.failure("convert", file, "--output", "s3://traces/copy.parquet")
    assert "s3://traces/copy.parquet is in object storage, which is not written to" in refused


def test_experiments(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab takes a capture's requests and its engine from there, and a worksheet its settings."""
    for name, value in stored.server.variables.items():
        monkeypatch.setenv(name, value)
    address, file = "s3://traces/day/replica-0.parquet", stored.local / "replica-0.parquet"
    work = load_work(Path(address), SAME)
    assert (work.name, work.scenario) == (address, load_work(file, SAME).scenario)
    sheets = [stored.run("worksheet", "--from", each, "--prompt-tokens", 11910) for each in (address, file)]
    assert sheets[0].stdout == sheets[1].stdout != ""


def test_what_others_wrote_there(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet that polars wrote anew, without our metadata, serves as well; other Parquet is noted and passed over."""
    for name, value in stored.server.variables.items():
        monkeypatch.setenv(name, value)
    rows = pl.read_parquet(stored.local / "replica-0.parquet")
    rows.write_parquet("s3://traces/anew/spans.parquet", storage_options=OPTIONS)
    assert stored.report("s3://traces/anew/spans.parquet") == stored.report(stored.local / "replica-0.parquet")
    pl.DataFrame({"start": ["long ago"]}).write_parquet("s3://traces/anew/other.parquet", storage_options=OPTIONS)
    (stored.bucket / "anew" / ".hidden.parquet").write_bytes(b"")
    done = stored.run("analyze", "s3://traces/anew/")
    assert done.returncode == 0
    assert "note: passed over: s3://traces/anew/other.parquet: Parquet, but not a capture" in done.stderr
    assert "hidden" not in done.stderr
    shutil.rmtree(stored.bucket / "anew")


def test_names_as_people_give_them(stored: Stored) -> None:
    """Spaces, percent signs, brackets, other scripts; and an object without a row is one all the same."""
    (stored.bucket / "odd").mkdir()
    for number, name in enumerate(("a day%20.parquet", "日[1]*.parquet")):
        shutil.copy(stored.local / f"replica-{number}.parquet", stored.bucket / "odd" / name)
    assert stored.report("s3://traces/odd/") == stored.report(stored.local)
    assert stored.report("s3://traces/odd/a day%20.parquet") == stored.report(stored.local / "replica-0.parquet")
    pl.read_parquet(stored.local / "replica-0.parquet").head(0).write_parquet(stored.bucket / "odd" / "none.parquet")
    assert "no usable span of otel_cache" in stored.failure("analyze", "s3://traces/odd/none.parquet")
    shutil.rmtree(stored.bucket / "odd")


def test_what_is_not_there(stored: Stored) -> None:
    """The object, the folder, the bucket; Parquet; the name of a bucket."""
    said = {
        address: stored.failure("analyze", address)
        for address in (
            "s3://traces/day/replica-7.parquet", "s3://traces/night/", "s3://traces/day/x*.parquet",
            "s3://nobody/day.parquet", "s3://nobody/*.parquet", "s3://traces/spans.jsonl", "s3://", "s3:///day.parquet",
        )
    }  # fmt: skip
    expected = ["no such object", "no object of Parquet", "no object of Parquet", "no such bucket", "no such bucket",
                "no Parquet", "names no bucket", "names no bucket"]  # fmt: skip
    for (address, line), words in zip(said.items(), expected, strict=True):
        assert line.startswith(f"Error: {address}: "), line
        assert words in line, line
    assert "`otel-cache convert`" in said["s3://traces/spans.jsonl"]
    assert "only those in object storage" in stored.failure("analyze", "https://storage.example.com/day.parquet")


def test_an_object_that_is_cut_off(stored: Stored) -> None:
    """By itself or in a folder it is said what is wrong there."""
    whole = (stored.local / "replica-0.parquet").read_bytes()
    (stored.bucket / "cut").mkdir()
    for name, content in (("half", whole[: len(whole) // 2]), ("empty", b"")):
        (stored.bucket / "cut" / f"{name}.parquet").write_bytes(content)
        line = stored.failure("analyze", f"s3://traces/cut/{name}.parquet")
        assert line.startswith(f"Error: s3://traces/cut/{name}.parquet: holds what is no Parquet, or not the whole")
    line = stored.failure("analyze", "s3://traces/cut/")
    assert line.startswith("Error: s3://traces/cut/: holds what is no Parquet, or not the whole")
    shutil.rmtree(stored.bucket / "cut")


@pytest.mark.parametrize("address", ["s3://traces/day/replica-0.parquet", "s3://traces/day/"])
def test_refused_or_not_answered(stored: Stored, address: str) -> None:
    """A wrong secret, key or region, no credentials, no server, a server of another protocol, no URL."""
    nobody = f"{HOST}:{free_port()}"
    metadata = f"http://{nobody}"
    cases: list[tuple[dict[str, str | None], str]] = [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "refuses to give it (SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, "refuses to give it ("),
        ({"AWS_REGION": "us-east-1"}, 'refuses to give it (AuthorizationHeaderMalformed: The authorization header is'),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_METADATA_ENDPOINT": metadata},
         "no credentials for it were found (Connection refused"),
        ({"AWS_ENDPOINT_URL": f"http://{nobody}"}, f"http://{nobody} does not answer (Connection refused"),
        ({"AWS_ENDPOINT_URL": stored.server.variables["AWS_ENDPOINT_URL"].replace("http", "https")}, "does not answer"),
        ({"AWS_ENDPOINT_URL": nobody}, "the variable AWS_ENDPOINT_URL is no URL"),
    ]  # fmt: skip
    for environment, words in cases:
        line = stored.failure("analyze", address, **environment)
        assert line.startswith(f"Error: {address}: "), line
        assert words in line, line
        assert "AWS_ENDPOINT_URL" in line, line
        assert not re.search("a-secret-of-it|&#", line), line


def test_other_stores(stored: Stored) -> None:
    """Google's and Microsoft's say which variables they look at."""
    nobody = f"http://{HOST}:{free_port()}"
    account = {
        "gcs_base_url": nobody,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    (stored.home / "account.json").write_text(json.dumps(account))
    google, microsoft = "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    line = stored.failure("analyze", "gs://traces/a.parquet", GOOGLE_SERVICE_ACCOUNT=str(stored.home / "account.json"))
    assert f"gs://traces/a.parquet: {nobody} does not answer" in line and line.endswith(google)
    line = stored.failure("analyze", "gs://traces/a.parquet", GOOGLE_APPLICATION_CREDENTIALS="/nowhere.json")
    assert "/nowhere.json" in line and line.endswith(google)
    line = stored.failure("analyze", "az://traces/a.parquet", AZURE_STORAGE_ACCOUNT_NAME=None)
    assert "Account must be specified" in line and line.endswith(microsoft)
    (stored.home / "account.json").unlink()


def test_a_server_that_hangs(stored: Stored) -> None:
    """It takes the connection and says nothing: given up before long."""
    with socket.create_server((HOST, 0), backlog=50) as hanging:
        where = f"http://{HOST}:{hanging.getsockname()[1]}"
        line = stored.failure("analyze", "s3://traces/day/", AWS_ENDPOINT_URL=where)
    assert f"{where} does not answer (operation timed out)" in line


class Relay:
    """Passes connections on to a server, and counts the bytes that come back."""

    def __init__(self, port: int) -> None:
        """Listen on a free port."""
        self.count = 0
        self._port = port
        self._listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._port))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.count += len(data) if counted else 0
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def close(self) -> None:
        """Take no more."""
        self._listener.close()


@pytest.fixture
def relay(stored: Stored) -> Iterator[Relay]:
    """A relay to the server."""
    found = Relay(int(stored.server.variables["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    yield found
    found.close()


def test_only_what_is_needed_is_fetched(stored: Stored, relay: Relay) -> None:
    """Columns that are no attribute of ours stay where they are."""
    rows = pl.read_parquet(stored.local / "replica-0.parquet")
    junk = pl.Series("junk", [os.urandom(JUNK // rows.height) for _ in range(rows.height)])
    metadata = pl.read_parquet_metadata(stored.local / "replica-0.parquet")
    kept = {name: value for name, value in metadata.items() if name.startswith("otel_cache")}
    (stored.bucket / "wide").mkdir()
    rows.with_columns(junk).write_parquet(stored.bucket / "wide" / "a.parquet", metadata=kept)
    size = (stored.bucket / "wide" / "a.parquet").stat().st_size
    assert size > JUNK * 0.99
    report = stored.report("s3://traces/wide/", AWS_ENDPOINT_URL=relay.url)
    assert report == stored.report(stored.local / "replica-0.parquet")
    assert 0 < relay.count < size
    shutil.rmtree(stored.bucket / "wide")


def test_the_manuals_examples(stored: Stored) -> None:
    """The block in docs/captures.md: its variables are the server's, its commands run."""
    (block,) = (each for each in blocks(read("docs/captures.md"), "sh") if "s3://" in each)
    commands = [line.words for line in lines(block)]
    variables = {word.partition("=")[0] for words in commands if words[0] == "export" for word in words[1:]}
    assert variables == set(stored.server.variables)
    for program, *words in commands:
        if program == "otel-cache":
            done = stored.run(*words)
            assert (done.returncode, done.stderr) == (0, ""), done
    for made in stored.home.iterdir():
        made.unlink()
