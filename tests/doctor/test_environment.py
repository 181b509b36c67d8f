"""What doctor says of the environment, the key, the spool and the running servers."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analyzers.doctor.checks import OK, PROBLEM, WARNING, Check, problem, verdict, warning
from analyzers.doctor.context import check_context
from analyzers.doctor.environment import check_environment
from analyzers.doctor.key import check_key
from analyzers.doctor.sampling import check_sampling
from analyzers.doctor.servers import Server, running_servers
from analyzers.doctor.vllm import Found, Verdict, check_vllm
from analyzers.doctor.ways import check_collector, check_file, check_settings, check_sidecar, check_spool
from otel_cache.config import VARIABLES
from otel_cache.keys import KEY_BYTES
from otel_cache.sidecar.sampling import TraceSampler

HOOKS = ("schedule", "lookup")
PREFIX = "OTEL_PYTHON_VLLM_CACHE_"
ENABLED = PREFIX + "ENABLED"
SECRET = "horse battery staple"


def found(name: str, environ: dict[str, str]) -> list[Check]:
    """Return the checks of this name."""
    return [check for check in check_environment(environ, HOOKS) if check.name == name]


@pytest.mark.parametrize(
    ("environ", "level", "says", "todo"),
    [
        ({ENABLED: "true"}, OK, f"{ENABLED}=true", ""),
        (
            {},
            WARNING,
            "is not set in this environment",
            f"set {ENABLED}=true, or start vLLM with `otel-cache run --` or `opentelemetry-instrument`",
        ),
        (
            {ENABLED: "False"},
            PROBLEM,
            "ENABLED=False keeps the plugin off",
            f"set {ENABLED}=true, or start vLLM with `otel-cache run --`, or unset it and start vLLM with "
            "`opentelemetry-instrument`",
        ),
        *(
            (
                {ENABLED: value},
                PROBLEM,
                f"ENABLED={value} is neither true nor false: it keeps the plugin off",
                f"set {ENABLED}=true, or start vLLM with `otel-cache run --`, or unset it and start vLLM with "
                "`opentelemetry-instrument`",
            )
            for value in ("1", "0", "yes", "no", "on")
        ),
        ({ENABLED: "true", "OTEL_SDK_DISABLED": "true"}, PROBLEM, "OTEL_SDK_DISABLED=true", "unset OTEL_SDK_DISABLED"),
        (
            {ENABLED: "true", "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "flask,vllm_cache"},
            PROBLEM,
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=flask,vllm_cache keeps",
            "unset OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
        ),
    ],
)
def test_enabled(environ: dict[str, str], level: str, says: str, todo: str) -> None:
    """Off is a warning, since what starts vLLM may turn it on; what keeps it off is a problem."""
    (check,) = found("enabled", environ)
    assert check.level == level
    assert says in check.says
    assert check.todo == todo
    assert check.untraced is (level != OK)


@pytest.mark.parametrize(
    ("plugins", "level", "todo"),
    [
        (None, OK, ""),
        ("a,otel_cache", OK, ""),
        ("a", PROBLEM, "set VLLM_PLUGINS=a,otel_cache"),
        ("", PROBLEM, "set VLLM_PLUGINS=otel_cache"),
    ],
)
def test_plugins(plugins: str | None, level: str, todo: str) -> None:
    """A list without our name, and an empty list, shut us out."""
    (check,) = found("VLLM_PLUGINS", {} if plugins is None else {"VLLM_PLUGINS": plugins})
    assert (check.level, check.todo, check.untraced) == (level, todo, level != OK)


def test_disabled_hooks() -> None:
    """Hooks that are left out, and names that are no hooks."""
    assert [check.level for check in found("disabled hooks", {})] == [OK]
    left_out, unknown = found("disabled hooks", {PREFIX + "DISABLED_HOOKS": "lookup,lokup"})
    assert (left_out.level, left_out.says) == (WARNING, "lookup: what they record is missing")
    assert "names lokup, which is no hook" in unknown.says
    assert unknown.todo == "there are lookup, schedule"


def test_the_key_is_named_and_never_shown(tmp_path: Path) -> None:
    """From a variable, from a file that others can read or not, from an empty or missing one."""
    given = check_key({PREFIX + "FINGERPRINT_KEY": SECRET})
    assert (given.level, given.says.split(",")[0]) == (OK, f"from {PREFIX}FINGERPRINT_KEY")

    path = tmp_path / "key"
    variables = {PREFIX + "FINGERPRINT_KEY_FILE": str(path)}
    assert (check_key(variables).level, "No such file" in check_key(variables).says) == (PROBLEM, True)
    path.write_text("")
    assert "is empty" in check_key(variables).says
    path.write_text(SECRET)
    path.chmod(0o640)
    open_to_others = check_key(variables)
    assert (open_to_others.level, open_to_others.todo) == (WARNING, f"chmod 600 {path}")
    path.chmod(0o600)
    private = check_key(variables)
    assert private.level == OK
    # One key, one id, wherever it comes from.
    assert private.says.rpartition(" ")[2] == given.says.rpartition(" ")[2]
    assert SECRET not in f"{given}{open_to_others}{private}"


def test_the_hosts_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not there yet, kept, damaged: doctor makes none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = tmp_path / "otel-cache" / "fingerprint.key"
    assert "a random one will be kept" in check_key({}).says
    assert not path.exists()
    path.parent.mkdir()
    path.write_bytes(bytes(KEY_BYTES))
    path.chmod(0o600)
    assert check_key({}).level == OK
    path.write_bytes(b"short")
    assert (check_key({}).level, check_key({}).todo) == (PROBLEM, f"remove {path}")


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("ENABLE", "did you mean OTEL_PYTHON_VLLM_CACHE_ENABLED?"),
        ("SOCKETS", "did you mean OTEL_PYTHON_VLLM_CACHE_SOCKET?"),
        ("OUT_FILE", None),
        ("Replica_ID", "did you mean OTEL_PYTHON_VLLM_CACHE_REPLICA_ID?"),
        ("XYZQ", "after OTEL_PYTHON_VLLM_CACHE_ there may be DISABLED_HOOKS, ENABLED, "),
    ],
)
def test_a_variable_that_there_is_not(name: str, todo: str | None) -> None:
    (check,) = found("variables", {PREFIX + name: "x"})
    assert (check.level, check.untraced) == (WARNING, False)
    assert check.says == f"{PREFIX}{name} is read by nobody: there is no such variable"
    assert todo is None or check.todo.startswith(todo)


def test_the_variables_that_there_are_get_no_warning() -> None:
    assert found("variables", dict.fromkeys(VARIABLES, "x")) == []


SAMPLER, ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"


@pytest.mark.parametrize(
    ("sampler", "argument", "level", "says", "sdk"),
    [
        (None, None, OK, "every trace is exported", "ParentBased{root:AlwaysOnSampler"),
        ("always_on", None, OK, "=always_on: every trace is exported", "AlwaysOnSampler"),
        ("ALWAYS_OFF", None, WARNING, "=ALWAYS_OFF: no spans of traces are exported", "AlwaysOffSampler"),
        (
            "parentbased_always_off",
            None,
            WARNING,
            "exported but those whose caller sampled",
            "ParentBased{root:AlwaysOffSampler",
        ),
        ("traceidratio", "0", WARNING, "_ARG=0: no spans of traces are exported", "TraceIdRatioBased{0.0}"),
        ("parentbased_traceidratio", "0.0", WARNING, "_ARG=0.0: no spans", "ParentBased{root:TraceIdRatioBased{0.0}"),
        ("traceidratio", "0.1", OK, "_ARG=0.1: 10% of the traces are exported", "TraceIdRatioBased{0.1}"),
        ("parentbased_traceidratio", ".25", OK, "25% of the traces", "ParentBased{root:TraceIdRatioBased{0.25}"),
        ("traceidratio", "1", OK, "every trace is exported", "TraceIdRatioBased{1.0}"),
        *(
            ("traceidratio", argument, WARNING, "falls back to 1.0: every trace is exported", "TraceIdRatioBased{1.0}")
            for argument in (None, "", "ten", "10%", "0,1", "1.5", "-1", "nan", "inf")
        ),
        *(
            (sampler, None, WARNING, f"={sampler} is no sampler of the SDK", "ParentBased{root:AlwaysOnSampler")
            for sampler in ("alwaysoff", "never", " always_off", "jaeger_remote")
        ),
        ("always_on", "0.1", WARNING, "takes no argument: OTEL_TRACES_SAMPLER_ARG=0.1 has no", "AlwaysOnSampler"),
    ],
)
def test_sampling(
    sampler: str | None, argument: str | None, level: str, says: str, sdk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What doctor says is what the sidecar's sampler does."""
    for name, value in ((SAMPLER, sampler), (ARGUMENT, argument)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    check = check_sampling(os.environ)
    assert (check.level, bool(check.todo)) == (level, level == WARNING)
    assert says in check.says
    assert TraceSampler().description.startswith(sdk)
    nothing = sdk.startswith(("AlwaysOff", "TraceIdRatioBased{0.0}"))
    assert check.unrecorded is nothing
    # With a file besides, the evidence is there all the same.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    both = check_sampling(os.environ | {PREFIX + "OUT": "x.jsonl"})
    assert (both.level, both.unrecorded) == (level, False)
    # A file alone has every span.
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert check_sampling(os.environ | {PREFIX + "OUT": "x.jsonl"}).level == OK


@pytest.mark.parametrize("value", ["none", "None"])
def test_no_exporter(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file spans go nowhere."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", value)
    check = check_collector(os.environ, None)
    assert (check.level, check.unrecorded) == (WARNING, True)
    assert f"OTEL_TRACES_EXPORTER={value} turns the export off" in check.says
    assert check_collector(os.environ | {PREFIX + "OUT": "x.jsonl"}, None).level == OK


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("EXPORT", "nonsense", "export"),
        ("STEP_SHARE", "2", "step share"),
        ("STEP_SHARE", "some", "step share"),
        ("SOCKET_UIDS", "root", "socket uids"),
    ],
)
def test_settings_that_keep_the_sidecar_from_starting(variable: str, value: str, name: str, tmp_path: Path) -> None:
    """Each by its own name, and none of them in the spool's check."""
    environ = {PREFIX + variable: value, PREFIX + "SPOOL": str(tmp_path)}
    (check,) = check_settings(environ)
    assert (check.name, check.level, check.unrecorded) == (name, PROBLEM, True)
    assert f"{PREFIX}{variable}={value}" in check.says
    assert check_spool(environ).level == OK
    assert list(check_settings({})) == []


def test_what_keeps_a_sidecar_from_starting(tmp_path: Path) -> None:
    """A file or a named spool that cannot be, and a named socket on which none listens: nothing is recorded."""
    (tmp_path / "file").touch()
    wrong = [
        next(check_file({PREFIX + "OUT": str(tmp_path)})),
        next(check_file({PREFIX + "OUT": str(tmp_path / "none" / "x.jsonl")})),
        check_sidecar({PREFIX + "SOCKET": str(tmp_path / "s")})[0],
        check_spool({PREFIX + "SPOOL_BYTES": "some"}),
        check_spool({PREFIX + "SPOOL": str(tmp_path / "file" / "spool")}),
    ]
    assert [(check.level, check.unrecorded) for check in wrong] == [(PROBLEM, True)] * len(wrong)
    # The default folder is done without.
    unnamed = check_spool({"XDG_STATE_HOME": str(tmp_path / "file")})
    assert (unnamed.level, unnamed.unrecorded) == (PROBLEM, False)


def test_spool(tmp_path: Path) -> None:
    """Usable, made later, in the way, too little room, impossible, off."""
    spool, size = PREFIX + "SPOOL", PREFIX + "SPOOL_BYTES"
    assert check_spool({spool: str(tmp_path)}).level == OK
    assert "will be made" in check_spool({spool: str(tmp_path / "a" / "b")}).says
    (tmp_path / "file").touch()
    assert "is not a folder" in check_spool({spool: str(tmp_path / "file" / "spool")}).says
    tight = check_spool({spool: str(tmp_path), size: "900000G"})
    assert (tight.level, "are free" in tight.says) == (WARNING, True)
    assert check_spool({spool: str(tmp_path), size: "some"}).level == PROBLEM
    assert "in memory alone" in check_spool({spool: "off"}).says
    tmp_path.chmod(0o777)
    assert check_spool({spool: str(tmp_path)}).todo == f"chmod 700 {tmp_path}"


def test_file(tmp_path: Path) -> None:
    """The evidence's file, where one is named."""
    out = PREFIX + "OUT"
    assert list(check_file({})) == []
    assert [check.level for check in check_file({out: str(tmp_path / "spans.jsonl")})] == [OK]
    assert [check.todo for check in check_file({out: str(tmp_path / "none" / "spans.jsonl")})] == ["make it"]
    assert "is a folder" in next(check_file({out: str(tmp_path)})).says


WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs that wait, named as vLLM's and as ours that runs one."""
    module = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for package in module.relative_to(tmp_path).parents[:-1]:
        (tmp_path / package / "__init__.py").touch()
    for path in (module, tmp_path / "bin" / "vllm", tmp_path / "bin" / "otel-cache"):
        path.write_text(WAITS)
    return tmp_path


def seen(arguments: list[str], folder: Path) -> tuple[int, list[Server]]:
    """Start Python in `folder` with `arguments`; return its process id, and what is told of it once it waits."""
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, cwd=folder)
    try:
        deadline = time.monotonic() + 10
        while arguments[-1] not in (Path("/proc") / str(process.pid) / "cmdline").read_text().split("\0"):
            assert time.monotonic() < deadline
        return process.pid, [one for one in running_servers() if one.pid == process.pid]
    finally:
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "traced"),
    [
        (["bin/vllm", "serve", "MODEL"], False),
        (["-u", "bin/vllm", "serve", "MODEL", "--otlp-traces-endpoint", "http://localhost:4317"], True),
        (["-m", "vllm.entrypoints.openai.api_server", "--otlp_traces_endpoint=http://localhost:4317"], True),
        (["-X", "dev", "-m", "vllm.entrypoints.openai.api_server", "--model", "MODEL"], False),
        (["bin/vllm", "serve", "--config", "serve.yaml"], None),
    ],
)
def test_running_servers_are_told_by_their_arguments(arguments: list[str], traced: bool | None, programs: Path) -> None:
    """Real processes with such a command line."""
    pid, mine = seen(arguments, programs)
    assert mine == [Server(pid, traced)]
    check = check_context(None, mine)
    assert check.level == (WARNING if traced is False else OK)
    assert (str(pid) in check.says) is (traced is False)
    assert os.getpid() not in {one.pid for one in running_servers()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["bin/otel-cache", "run", "--", "python", "-m", "vllm.entrypoints.openai.api_server"],
        ["bin/otel-cache", "run", "--", "vllm", "serve", "MODEL"],
        ["bin/vllm", "bench", "serve"],
        ["-c", WAITS, "vllm", "serve", "MODEL"],
    ],
)
def test_who_starts_a_server_is_none(arguments: list[str], programs: Path) -> None:
    assert seen(arguments, programs)[1] == []


def test_servers_without_tracing_are_named() -> None:
    assert "process 7 was started" in check_context(None, [Server(7, False), Server(8, True)]).says
    assert "processes 7, 9 were started" in check_context(None, [Server(7, False), Server(9, False)]).says


def test_verdicts() -> None:
    """A required method that is missing leaves vLLM unpatched; an optional one is left out; the others are counted."""
    verdicts = [
        Verdict("schedule", "Scheduler.schedule", True, ""),
        Verdict("partial_store", "BlockPool.cache_partial_block", False, "vLLM's BlockPool has no such method"),
    ]
    sound = list(check_vllm(Found(True, "/x/vllm/__init__.py", True, "0.32.0", True, verdicts)))
    assert {(check.level, check.untraced) for check in sound} == {(OK, False)}
    left_out = "hook partial_store (BlockPool.cache_partial_block)"
    assert [check.name for check in sound] == ["vllm", "plugin", left_out, "patch"]
    assert sound[-1].says == "this vLLM can be patched: 1 of 2 methods are as expected"

    verdicts[0] = Verdict("schedule", "Scheduler.schedule", True, "vLLM's Scheduler has no method schedule")
    broken = list(check_vllm(Found(True, "/x/vllm/__init__.py", False, "0.40.0", False, verdicts)))
    levels = {check.name: check.level for check in broken}
    assert levels["vllm"] == WARNING
    hook = "hook schedule (Scheduler.schedule)"
    assert (levels["plugin"], levels[hook], levels["patch"]) == (PROBLEM, PROBLEM, PROBLEM)
    assert [check.name for check in broken if check.untraced] == ["plugin", "patch"]
    for nothing in (Found(False), Found(True, "/x/vllm/__init__.py", True, error="ImportError: x")):
        assert [check.level for check in check_vllm(nothing) if check.untraced] == [PROBLEM]


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ([], "would be traced"),
        ([warning("spool", "tight")], "would be traced"),
        ([warning("enabled", "off", untraced=True)], "would not be traced (see enabled)"),
        (
            [
                warning("enabled", "off", untraced=True),
                problem("vllm", "x", "y", untraced=True),
                problem("file", "", ""),
            ],
            "would not be traced (see enabled, vllm)",
        ),
        (
            [problem("export", "x", "y", unrecorded=True), warning("file", "x", unrecorded=True)],
            "would run, but nothing would be recorded (see export, file)",
        ),
        (
            [problem("export", "x", "y", unrecorded=True), warning("enabled", "off", untraced=True)],
            "would not be traced (see enabled)",
        ),
        ([problem("collector", "away", "start it")], "would be traced, but not all is well (see collector)"),
    ],
)
def test_the_last_word(checks: list[Check], says: str) -> None:
    """Whether vLLM would be traced, whatever the number of problems."""
    assert verdict(checks) == f"vLLM started in this environment {says}"
