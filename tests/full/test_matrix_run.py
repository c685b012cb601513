"""Running the matrix: what can run here, in which order, and what is run again."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("tox")

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portagpu.cli import main
from portagpu.reports.proofs.run import Here, why_again
from portagpu.runs.ledger import Device
from portagpu.runs.results.run import Result, Run, Verdict, new_run
from tests.conftest import CHILD_LIMIT_S, ROOT
from tests.process.test_matrix_run import check_nothing_left, run, whole, words_of_two
from tests.process.test_matrix_run import log as log
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def started(out: Path, jobs: int, stuck: str) -> subprocess.Popen[str]:
    """The verb with two environments, of which one never ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "portagpu", *words_of_two(out, jobs)],
        env={**os.environ, "STUCK": f"{stuck} compile"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def change_text(document: dict[str, Any], where: str, value: object) -> None:
    *parents, key = where.split(".")
    for name in parents:
        document = document[name]
    document[key] = value


def test_ctrl_c_ends_what_runs(log: Path, tmp_path: Path) -> None:
    child = started(tmp_path / "out", 1, "nvidia-l4")
    wait_until(lambda: log.exists() and "begin nvidia-l4" in log.read_text(), "it does not begin")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=CHILD_LIMIT_S)
    assert child.returncode == 130, err
    assert "interrupted" in err
    check_nothing_left(tmp_path)


def test_an_environment_without_a_result_states_its_last_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKEN", "nvidia-t4 compile")
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / "out")]
    assert main(["matrix", "run", *words]) == 1
    out = capsys.readouterr().out
    assert "1/1  ERROR" in out
    assert "nvidia-t4-compile: said by nvidia-t4 compile" in out


def test_each_environment_has_a_result_and_a_log(log: Path, tmp_path: Path) -> None:
    names = ("nvidia-t4-compile", "cpu-x86-64-conformance", "cpu-x86-64-performance")
    assert run(tmp_path / "out", *names) == dict.fromkeys(names, "PASS")
    for name in names:
        assert json.loads((tmp_path / "out" / f"{name}.json").read_text())["verdict"] == "PASS"
    said = (tmp_path / "out/cpu-x86-64-performance.log").read_text()
    assert "said by cpu-x86-64 bench" in said


def test_a_python_that_is_missing_is_reported(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORTAGPU_PYTHON", "no-such-python")
    words = ["--target", "nvidia-t4", "--suite", "compile", "--out", str(tmp_path / "out")]
    assert main(["matrix", "run", *words]) == 1
    assert "PORTAGPU_PYTHON=no-such-python is not a program; set it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        ("run.interrupted", True, "it was interrupted"),
        ("run.versions.portagpu", "0.0.1", "it is of portagpu 0.0.1"),
        ("run.versions.torch", "2.8", "it is of torch 2.8, and 2.9 is here"),
        ("run.host", "another", "it is of the host another"),
        ("run.host", "", "it is of the host without a name"),
        ("run.target", "nvidia-h200-sxm", "it is of nvidia-h200-sxm"),
        ("run.switches", {"TRITON_INTERPRET": "1"}, "it ran under TRITON_INTERPRET"),
        ("run.replay", [{"name": "x", "sha256": None, "source": None}], "it is of a recording"),
        (
            "run.command",
            ["portagpu", "conform", "--only", "rng/*", "--target", "cpu-x86-64"],
            "it was run as: conform --only rng/* --target cpu-x86-64",
        ),
        (
            "run.devices",
            [{"name": "GPU", "uuid": "GPU-A"}],
            "its device gpu-a is not here",
        ),
        ("results", 1, "it has 1 of "),
        ("suite", "performance", "it is not of the suite conformance alone"),
    ],
)
def test_a_result_of_something_else_is_not_kept(
    where: str, value: Any, why: str, tmp_path: Path
) -> None:
    suite, ids = whole()["conform"]
    command = ["portagpu", "conform", "--target", "cpu-x86-64", "--seed", "0", "--json", "x.json"]
    made = new_run(command, target="cpu-x86-64", backend="cpu", versions={"torch": "2.9"})
    for name in ids:
        made.add(Result(id=name, suite=suite, area="a", verdict=Verdict.PASS))
    here = Here("host", (Device(""),), (), "2.9", frozenset())

    def reason(of: Run) -> str:
        return why_again(of, "cpu-x86-64", "conformance", (), lambda: here)

    document = made.finish().to_json()
    assert reason(Run.from_json(json.loads(json.dumps(document)))) == ""
    if where == "results":
        document["results"] = document["results"][:value]
        document["counts"]["PASS"] = value
    elif where == "suite":
        document["results"][0]["suite"] = value
    else:
        change_text(document, where, value)
    if where == "run.interrupted":
        document["verdict"] = "INCONCLUSIVE"
    assert reason(Run.from_json(document)).startswith(why)
