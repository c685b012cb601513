"""README: its main job brings this machine up, and its training runs on two ranks."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import readme
from tests.support.history_samples import measure, run
from tests.support.launched import run_on_the_cpu
from tests.support.readme import TEST, assert_in_order, section

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs

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


def test_comparing_runs_prints_what_is_shown(tmp_path: Path, verbs: ForkedVerbs) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    part = section("## Compare runs and machines", TEST)
    commands = re.findall(r"^\$ portagpu (.*)$", part, re.MULTILINE)
    files = [words[-1] for words in map(shlex.split, commands) if words[0] == "bench"]
    for day, file in enumerate(files):
        run(day, [measure("memory/copy", 20.0)]).write_json(tmp_path / file)
    rest = [command for command in commands if not command.startswith("bench")]
    assert (len(files), len(rest)) == (2, 3)
    for command in rest:
        ended = verbs(*shlex.split(command), folder=tmp_path)
        assert ended.code == 0, ended.err
        after = re.search(
            rf"^\$ portagpu {re.escape(command)}\n(.*?)^(?:\$|```)", part, re.MULTILINE | re.DOTALL
        )
        assert after
        assert_in_order([line for line in after[1].splitlines() if line != "..."], ended.out)
