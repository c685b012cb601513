"""README: its main job brings this machine up, and its training runs on two ranks."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import readme
from tests.support.launched import run_on_the_cpu

if TYPE_CHECKING:
    from pathlib import Path

JOB_LIMIT_S: Final = 600
pytest.importorskip("torch")


@pytest.mark.torch
@pytest.mark.first
def test_main_job_command_ends_in_a_verdict_of_pass(tmp_path: Path) -> None:
    words = shlex.split(readme.shell_blocks()[0][-1])
    ended = readme.portagpu(*words[1:], cwd=tmp_path, limit_s=JOB_LIMIT_S)
    assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    assert "PASS" in ended.stdout
    readme.assert_gates(ended.stdout)


@pytest.mark.torch
def test_training_example_prints_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(readme.training_example())
    words = [sys.executable, "-m", "torch.distributed.run", *readme.TRAINING_COMMAND.split()[1:]]
    code, out, err = run_on_the_cpu(words, tmp_path)
    assert code == 0, err
    readme.assert_trained(out)
