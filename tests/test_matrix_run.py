"""Running the matrix: what can run here, in which order, and what is run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from portagpu.cli import main
from portagpu.matrix import run as matrix_run
from portagpu.matrix.run import CannotRun, Environment, reachable, run_environments
from portagpu.paths import matrix_dir
from portagpu.results.run import Result, Verdict, new_run
from portagpu.target import load_target
from tests.conftest import CHILD_LIMIT_S, ROOT

pytest.importorskip("tox")
if matrix_dir() != ROOT / "matrix":
    pytest.skip("the matrix runs from a checkout", allow_module_level=True)

STAND_IN = """\
#!{python}
import os, pathlib, sys, time
if "-m" not in sys.argv:
    sys.exit(0)
words = dict(zip(sys.argv, sys.argv[1:]))
name = words["--target"] + " " + words["portagpu"]
log = pathlib.Path({log!r})
with log.open("a") as file:
    file.write("begin " + name + "\\n")
print("said by " + name)
if name in os.environ.get("STUCK", ""):
    time.sleep(600)
time.sleep(0.3)
if name not in os.environ.get("BROKEN", ""):
    text = pathlib.Path({result!r}).read_text()
    place = pathlib.Path(words["--json"])
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
with log.open("a") as file:
    file.write("end " + name + "\\n")
"""
"""A Python with everything, which stands for the verbs: it writes a run that passed."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in did: a line when an environment begins, and one when it ends."""
    run = new_run(target="cpu-x86-64", backend="cpu")
    run.add(Result(id="a/b", suite="conformance", area="a", verdict=Verdict.PASS))
    result = run.finish().write_json(tmp_path / "passed.json")
    place = tmp_path / "log"
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, log=str(place), result=str(result)))
    program.chmod(0o755)
    monkeypatch.setenv("PORTAGPU_PYTHON", str(program))
    monkeypatch.setenv("TOX_WORK_DIR", str(tmp_path / "tox"))
    return place


def run(folder: Path, *names: str, jobs: int = 2, again: bool = False) -> dict[str, str]:
    """The verdict of each environment, and "kept" behind those of an earlier call."""
    environments = [
        Environment(load_target(t), s) for t, _, s in (n.rpartition("-") for n in names)
    ]
    told: list[str] = []
    outcomes = run_environments(
        environments,
        folder,
        jobs=jobs,
        again=again,
        told=lambda each: told.append(each.environment.name),
    )
    assert told == [each.environment.name for each in outcomes]
    return {e.environment.name: f"{e.verdict}{' kept' if e.kept else ''}" for e in outcomes}


def test_this_machine_reaches_machine_code_of_gpus_and_its_own_devices() -> None:
    names = [
        each.name
        for each in reachable(
            [load_target("nvidia-t4"), load_target("cpu-aarch64"), load_target("cpu-x86-64")],
            matrix_run.SUITES,
        )
    ]
    here = {"x86_64": "cpu-x86-64", "aarch64": "cpu-aarch64"}[os.uname().machine]
    suites = ("conformance", "performance", "bringup")
    assert names == ["nvidia-t4-compile", *(f"{here}-{suite}" for suite in suites)]


def test_each_environment_has_a_result_and_a_log(log: Path, tmp_path: Path) -> None:
    names = ("nvidia-t4-compile", "cpu-x86-64-conformance", "cpu-x86-64-performance")
    assert run(tmp_path / "out", *names) == dict.fromkeys(names, "PASS")
    for name in names:
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())["verdict"] == "PASS"
    said = (tmp_path / "out/cpu-x86-64-performance.log").read_text()
    assert "said by cpu-x86-64 bench" in said


def test_measures_run_alone(log: Path, tmp_path: Path) -> None:
    run(
        tmp_path / "out",
        "cpu-x86-64-performance",
        "nvidia-t4-compile",
        "cpu-x86-64-conformance",
        "cpu-x86-64-bringup",
        jobs=4,
    )
    lines = log.read_text().splitlines()
    for name in ("cpu-x86-64 bench", "cpu-x86-64 bringup"):
        began = lines.index(f"begin {name}")
        assert lines[began + 1] == f"end {name}", lines
        before = lines[:began]
        assert sum(each.startswith("begin") for each in before) == len(before) / 2


def test_what_ended_is_kept_and_the_rest_goes_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    monkeypatch.setenv("BROKEN", "nvidia-t4 compile")
    first = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance")
    assert first == {"nvidia-t4-compile": "ERROR", "cpu-x86-64-conformance": "PASS"}
    monkeypatch.delenv("BROKEN")
    second = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance")
    assert second == {"nvidia-t4-compile": "PASS", "cpu-x86-64-conformance": "PASS kept"}
    third = run(folder, "nvidia-t4-compile", "cpu-x86-64-conformance", again=True)
    assert third == {"nvidia-t4-compile": "PASS", "cpu-x86-64-conformance": "PASS"}


@pytest.mark.parametrize("change", ["interrupted", "version", "cut"])
def test_what_did_not_end_runs_again(change: str, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    name = "cpu-x86-64-conformance"
    run(folder, name)
    place = folder / f"{name}.json"
    document = json.loads(place.read_text())
    if change == "interrupted":
        document["run"]["interrupted"] = True
        document["verdict"] = "INCONCLUSIVE"
    elif change == "version":
        document["run"]["versions"]["portagpu"] = "0.0.1"
    text = json.dumps(document)
    place.write_text(text[:-20] if change == "cut" else text)
    assert run(folder, name) == {name: "PASS"}


def test_an_environment_without_a_result_tells_its_last_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKEN", "nvidia-t4 compile")
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / "out")]
    assert main(["matrix", "run", *words]) == 1
    out = capsys.readouterr().out
    assert "1/1  ERROR" in out
    assert "nvidia-t4-compile: said by nvidia-t4 compile" in out


def started(out: Path, jobs: int, stuck: str) -> subprocess.Popen[str]:
    """The verb with two environments, of which one never ends."""
    targets = ["--target", "nvidia-t4", "--target", "nvidia-l4"]
    options = ["--suite", "compile", "--jobs", str(jobs), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "portagpu", "matrix", "run", *targets, *options],
        env={**os.environ, "STUCK": f"{stuck} compile"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def check_nothing_left(folder: Path) -> None:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(folder / "bin").encode() not in each.read_bytes(), "a process is left"


def test_ctrl_c_ends_what_runs(log: Path, tmp_path: Path) -> None:
    child = started(tmp_path / "out", 1, "nvidia-l4")
    end = time.monotonic() + CHILD_LIMIT_S
    while not (log.exists() and "begin nvidia-l4" in log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=CHILD_LIMIT_S)
    assert child.returncode == 130, err
    assert "interrupted" in err
    check_nothing_left(tmp_path)


def test_a_log_that_cannot_be_written_ends_what_runs(log: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "nvidia-l4-compile.log").mkdir(parents=True)
    child = started(tmp_path / "out", 2, "nvidia-t4")
    _, err = child.communicate(timeout=CHILD_LIMIT_S)
    assert (child.returncode, err.count("\n")) == (1, 1)
    assert "nvidia-l4-compile.log: Is a directory" in err
    assert "begin nvidia-t4" in log.read_text()
    check_nothing_left(tmp_path)


@pytest.mark.parametrize("folder", ["/proc/none", "out"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    (tmp_path / "out" / "nvidia-t4-compile.json").mkdir(parents=True)
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / folder)]
    assert main(["matrix", "run", *words]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), "cannot write" in said) == (1, True)
    assert not log.exists()


def test_a_target_that_is_named_twice_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "nvidia-t4", "--target", "nvidia-t4", "--suite", "compile", "--list"]
    assert main(["matrix", "run", *words]) == 0
    assert capsys.readouterr().out == "nvidia-t4-compile\n"


def test_an_installed_wheel_cannot_run_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_run, "matrix_dir", lambda: tmp_path / "_matrix")
    with pytest.raises(CannotRun, match="runs from a checkout"):
        run(tmp_path / "out", "nvidia-t4-compile")


def test_nothing_to_run_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "run", "--target", "nvidia-t4", "--suite", "bringup"]) == 2
    assert "this machine can run nothing of that" in capsys.readouterr().err


def test_a_python_that_is_missing_is_told(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORTAGPU_PYTHON", "no-such-python")
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / "out")]
    assert main(["matrix", "run", *words]) == 1
    assert "PORTAGPU_PYTHON=no-such-python is not a program; set it" in capsys.readouterr().out
