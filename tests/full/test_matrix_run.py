"""Running the matrix: what can run here, in which order, and what is run again."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("tox")

from typing import TYPE_CHECKING

from portagpu.cli import main
from tests.conftest import CHILD_LIMIT_S
from tests.process.test_matrix_run import check_nothing_left, started
from tests.process.test_matrix_run import log as log
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path


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
