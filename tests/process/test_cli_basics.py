"""What every verb shares: dispatch, exit codes, one-line errors, ``--json`` and plain output."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from portagpu import cli
from portagpu._version import __version__
from portagpu.base.errors import BackendNotFound, MissingDependency, OutputError, TargetNotFound
from portagpu.base.plugins import install
from portagpu.cli import _common
from portagpu.cli._verbs import VERBS
from portagpu.facts.torchbuild import TorchBuild
from portagpu.runs.results.run import read_json
from tests.support.forked_verbs import VERB

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child
    from tests.support.forked_verbs import ForkedVerbs

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}",
    "PATH": os.environ.get("PATH", ""),
    "PYTHONWARNINGS": "error",
}


@pytest.fixture
def run(verbs: ForkedVerbs) -> Callable[..., Child]:
    """The command line in a fork, in which a warning is an error."""
    strict = "import warnings\nwarnings.simplefilter('error')\n"
    return lambda *words: verbs(*words, environment=ENVIRONMENT, body=f"{strict}{VERB}")


def _verb(monkeypatch: pytest.MonkeyPatch, function: Callable[[], int | None]) -> None:
    """Make ``portagpu try`` call ``function``."""
    module = type(sys)("portagpu_verb_for_tests")
    module.command = click.command(name="try")(function)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(VERBS, "try", (f"{module.__name__}:command", "For tests."))


def _raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_version_is_answered_without_click() -> None:
    program = (
        "import sys\nfrom portagpu.cli import main\ncode = main(['--version'])\n"
        "assert not {'click', 'rich', 'torch'} & set(sys.modules)\nraise SystemExit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"portagpu {__version__}\n"), done.stderr


def test_help_lists_the_verbs_and_imports_none() -> None:
    program = (
        "import sys\nfrom portagpu.cli import main\nmain(['--help'])\n"
        "from portagpu.cli._verbs import VERBS\n"
        "loaded = [m for m, _ in VERBS.values() if m.split(':')[0] in sys.modules]\n"
        "assert not loaded, loaded\nassert 'rich' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"  {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", [each for each in VERBS if each != "docs"])
def test_every_verb_of_results_exists_and_has_json(verb: str, run: Callable[..., Child]) -> None:
    done = run(verb, "--help")
    assert (done.code, done.err) == (0, "")
    group = "COMMAND" in done.out or "VERB ..." in done.out
    assert "--json" in done.out or group, f"{verb} has no --json"


def test_no_verb_shows_help_as_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("Usage: portagpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inof"], "portagpu: there is no verb 'inof': did you mean 'info'?"),
        (["zzz"], "portagpu: there is no verb 'zzz': verbs are info"),
        (
            ["compare"],
            "there is no verb 'compare': did you mean 'portagpu matrix history compare'?",
        ),
        (
            ["matrix", "conform"],
            "matrix: there is no verb 'conform': did you mean 'portagpu conform'?",
        ),
        (["targets", "zzz"], "targets: there is no verb 'zzz': verbs are list, show, check"),
        (
            ["bench", "--only", "zzz", "--list"],
            "there is no measure 'zzz': areas are gemm, memory,",
        ),
        (["info", "--jsn", "x"], "Did you mean '--json'?"),
        (["--verison"], "Did you mean '--version'?"),
        (["info", "extra"], "(extra)"),
        (["info", "--json"], "requires an argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1, f"not one line: {err!r}"
    assert "--help'" in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OutputError("cannot write /x: disk full;\n  free space"), 1, "disk full; free space"),
        (MissingDependency("portagpu try needs torch"), 3, "needs torch"),
        (BackendNotFound("no backend", {"rocm": "no GPU"}), 3, "no backend (rocm: no GPU)"),
        (TargetNotFound("no target 'amd-mi30x'; did you mean amd-mi300x?"), 2, "did you mean"),
        (click.BadParameter("not a size"), 2, "not a size"),
        (click.ClickException("other"), 1, "other"),
        (OutputError("cannot write \x1b[2J\u202ex"), 1, "cannot write [2J x"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(24, "Too many open files"), 1, "Too many open files; raise ulimit -n"),
        (MemoryError("malloc of 9 failed"), 1, "memory is exhausted: free some, raise ulimit -v"),
        (
            ModuleNotFoundError("No module", name="rich"),
            3,
            "rich is not installed: install portagpu",
        ),
        (ModuleNotFoundError("No module", name="x"), 1, "unexpected ModuleNotFoundError"),
        (ZeroDivisionError("division"), 1, "unexpected ZeroDivisionError: division"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_one_line_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    monkeypatch.delenv("PORTAGPU_DEBUG", raising=False)
    _verb(monkeypatch, _raising(error))
    assert cli.main(["try"]) == code
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, f"not one line: {err!r}"
    assert lines[0].startswith("portagpu: ")
    assert said in lines[0]


def test_debug_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORTAGPU_DEBUG", "1")
    _verb(monkeypatch, _raising(ZeroDivisionError("division")))
    assert cli.main(["try"]) == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_a_verb_returns_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, returned: int | None, code: int
) -> None:
    _verb(monkeypatch, lambda: returned)
    assert cli.main(["try"]) == code


def closed_pipe(*words: str, **streams: int) -> subprocess.CompletedProcess[str]:
    """A verb whose standard output nobody reads, as that of ``| head`` when it has enough."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        return subprocess.run(
            [sys.executable, "-m", "portagpu", *words],
            env=ENVIRONMENT,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.mark.parametrize("words", [("info",), ("bringup", "--list"), ("info", "--json", "-")])
def test_a_closed_pipe_is_quiet_and_changes_no_exit_code(words: tuple[str, ...]) -> None:
    done = closed_pipe(*words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_stops_no_run_and_changes_no_verdict(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = closed_pipe("bringup", "--only", "environment", "--out", str(out))
    run = read_json(out / "result.json")
    assert not run.info.interrupted
    assert done.returncode == run.exit_code
    assert (out / "report.html").exists()


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_what_an_encoding_lacks_is_escaped(encoding: str) -> None:
    program = (
        "import click, sys, types\n"
        "from portagpu import cli\nfrom portagpu.cli._verbs import VERBS\n"
        "module = sys.modules['for_tests'] = types.ModuleType('for_tests')\n"
        "def command(): print('7 \\xb1 1'); print('\\udcff', file=sys.stderr)\n"
        "module.command = click.command(name='try')(command)\n"
        "VERBS['try'] = ('for_tests:command', 'For tests.')\n"
        "sys.exit(cli.main(['try']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sign = b"\\xb1" if "ascii" in encoding else b"\xc2\xb1"
    assert done.stdout == b"7 " + sign + b" 1\n"
    assert done.stderr == b"\\udcff\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("word", ["--version", "info"])
def test_a_full_disk_is_one_line(word: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "portagpu", word],
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("portagpu: cannot write the output: No space left on device")
    assert done.stderr.count("\n") == 1, f"not one line: {done.stderr!r}"


def test_info_works_without_torch_and_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "click").symlink_to(Path(click.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "portagpu", "info"],
        env=ENVIRONMENT | {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Torch\n  not installed\n" in done.stdout
    assert "torch is not installed: pip install '.[torch]' (in the folder of" in done.stdout


def test_json_to_standard_output_is_json_alone(run: Callable[..., Child]) -> None:
    done = run("info", "--json", "-")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["schema"] == "portagpu.info/1"


def test_json_to_a_file_keeps_the_text(tmp_path: Path, run: Callable[..., Child]) -> None:
    done = run("info", "--json", str(tmp_path / "a/info.json"))
    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "a/info.json").read_text())["schema"] == "portagpu.info/1"
    assert done.out.startswith("Devices\n")


def test_json_to_a_folder_is_one_clear_line(tmp_path: Path, run: Callable[..., Child]) -> None:
    done = run("info", "--json", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("portagpu: info: cannot write ")
    assert done.err.count("\n") == 1


def test_text_in_a_pipe_is_plain(run: Callable[..., Child]) -> None:
    assert "\x1b" not in run("info").out


def test_forced_colour_is_in_a_pipe_too_and_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    written = io.StringIO()
    console = _common.terminal(written)
    assert console is not None
    console.print("words", style="cyan")
    assert written.getvalue() == "\x1b[36mwords\x1b[0m\n"
    assert _common.live_console(written) is None, (
        "a cursor that is moved leaves its commands in a log"
    )


INTERRUPTED = {
    "docs": ("portagpu.cli.docs.docs_dir", ()),
    "info": ("portagpu.checks.info.collect", ()),
    "record": ("portagpu.checks.recordings.record.record", ("folder",)),
    "monitor": ("portagpu.checks.monitor.run.samplers", ()),
    "bringup": ("portagpu.checks.bringup.checks.environment.read_host", ()),
    "health": ("portagpu.checks.health.watchdog.health_within", ()),
    "conform": ("portagpu.suites.conformance.conform", ()),
    "bench": ("portagpu.suites.performance.run", ()),
    "screen": ("portagpu.suites.screen.run", ()),
    "compile": ("portagpu.suites.compile.compile_kernels", ("--all",)),
    "collectives": (
        "portagpu.facts.targets.load_target",
        ("choose", "--ranks", "2", "--bytes", "8", "--target", "nvidia-h100-sxm"),
    ),
    "trace": ("portagpu.cli.trace.read_captures", ("summary", ".")),
    "occupancy": (
        "portagpu.devices.sizing.occupancy",
        ("--arch", "sm_90", "--threads", "64", "--regs", "32"),
    ),
    "plan": (
        "portagpu.facts.targets.load_target",
        ("--model", "gpt2", "--target", "nvidia-h100-sxm", "--ranks", "1", "--batch", "1"),
    ),
    "port": ("portagpu.cli.port.require_libcst", ("lint", ".")),
    "profile": ("portagpu.traces.profile.make_plan", ("--", "true")),
    "targets": ("portagpu.facts.targets.load_targets", ()),
    "fleet": (
        "portagpu.reports.fleet.slurm.version",
        ("run", "bringup", "--nodes", "n", "--out", "x"),
    ),
    "report": ("portagpu.reports.bundles.document.read_files", ("result.json",)),
    "matrix": (
        "portagpu.reports.bundles.document.read_files",
        ("report", ".", "--out", "page.html"),
    ),
}
"""Verb: what is at work when Ctrl-C is pressed, and the words that get it there."""


@pytest.mark.torch
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_that_it_was_interrupted(
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    place, words = INTERRUPTED[verb]
    monkeypatch.setattr(place, pressed)
    code = cli.main([verb, *words])
    said = capfd.readouterr()
    assert code == 130
    reported = [line for line in (said.out + said.err).splitlines() if "interrupted" in line]
    assert reported[-1] in ("portagpu: interrupted", (said.out + said.err).splitlines()[-1])


def test_human_text_gives_way_to_json() -> None:
    assert _common.text_stream("-") is sys.stderr
    assert _common.text_stream("file.json") is sys.stdout
    assert _common.text_stream(None) is sys.stdout


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (None, f"portagpu conform needs torch: {install('torch')}"),
        (TorchBuild("/x", problem="cannot read /x/version.py"), "cannot read /x/version.py"),
    ],
    ids=["missing", "broken"],
)
def test_a_verb_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, build: TorchBuild | None, said: str
) -> None:
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda: build)
    with pytest.raises(MissingDependency, match="needs torch") as caught:
        _common.require_torch("conform")
    assert said in str(caught.value)


def test_a_verb_with_torch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = TorchBuild("/x", version="2.9.1", kind="cpu")
    monkeypatch.setattr("portagpu.facts.torchbuild.torch_build", lambda: found)
    _common.require_torch("conform")


def test_system_exit_keeps_its_code() -> None:
    assert cli.end_with(SystemExit(7)) == 7
    assert cli.end_with(SystemExit(None)) == 1
    assert cli.end_with(SystemExit(0)) == 1
    assert cli.end_with(SystemExit("text")) == 1


ENDED = """
import os, signal, sys, click
from portagpu import cli
from portagpu.cli._verbs import VERBS

@click.command()
def ended():
    if sys.argv[2] == "ignored":
        click.echo("goes on")
    else:
        click.echo("begun")
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        signal.sigtimedwait([signal.SIGUSR1], 0.2)
    finally:
        click.echo("cleaned up")

ignored = sys.argv[2] == "ignored"  # the tests themselves may run under nohup
signal.signal(int(sys.argv[1]), signal.SIG_IGN if ignored else signal.SIG_DFL)
VERBS["ended"] = ("__main__:ended", "")
before = signal.getsignal(int(sys.argv[1]))
code = cli.main(["ended"])
assert signal.getsignal(int(sys.argv[1])) is before
sys.exit(code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_scheduler_sends_is_an_interruption(
    child: Callable[..., Child], number: int
) -> None:
    done = child("-c", ENDED, str(int(number)), "default")
    assert done.code == 130, done.err
    assert done.out.split("\n") == ["begun", "cleaned up", ""]
    assert done.err.strip() == "portagpu: interrupted"


def test_what_is_ignored_stays_ignored(child: Callable[..., Child]) -> None:
    done = child("-c", ENDED, str(int(signal.SIGHUP)), "ignored")
    assert done.code == 0, done.err
    assert done.out.split("\n") == ["goes on", "cleaned up", ""]


@pytest.mark.parametrize("module", ["click", "json"])
def test_a_module_that_ends_the_program_is_not_a_pass(
    child: Callable[..., Child], tmp_path: Path, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text("raise SystemExit(0)")
    done = child("-m", "portagpu", "info", path=[tmp_path])
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("portagpu: a module that was imported ended the program (0): ")
    assert done.err.count("\n") == 1
