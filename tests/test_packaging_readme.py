"""README's two commands: what a new user types first does what the page says.

The first two ``sh`` blocks of README.md are complete commands for a fresh machine, each one chain
of ``&&``: the first installs portagpu and runs the main job, the second passes the tests.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import ROOT

JOB_LIMIT_S: Final = 600


@pytest.fixture(scope="module")
def blocks() -> list[list[str]]:
    """The commands of each ``sh`` block, split at ``&&``."""
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) >= 2, "README.md must show two complete commands as ```sh blocks"
    return [[part.strip() for part in block.replace("\\\n", " ").split("&&")] for block in found]


def test_main_job_command_makes_its_own_environment(blocks: list[list[str]]) -> None:
    make, install, job = (shlex.split(part) for part in blocks[0])
    assert make == ["python3", "-m", "venv", ".venv"]
    assert install[:2] == [".venv/bin/pip", "install"]
    assert job[:2] == [".venv/bin/portagpu", "bringup"]


def test_what_the_main_job_command_installs_exists(blocks: list[list[str]]) -> None:
    words = shlex.split(blocks[0][1])[2:]
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file()
    (requirement,) = (word for word in words if word.startswith("."))
    extras = re.findall(r"\w+", requirement.removeprefix("."))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras) <= set(project["optional-dependencies"]), f"{requirement} does not exist"


def test_test_command_is_the_one_that_continuous_checks_run(blocks: list[list[str]]) -> None:
    command = " && ".join(" ".join(part.split()) for part in blocks[1])
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert command in script.splitlines(), f".ci/run must run exactly: {command}"


@pytest.mark.torch
@pytest.mark.slow
def test_main_job_command_ends_in_a_verdict_of_pass(
    blocks: list[list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    words = shlex.split(blocks[0][-1])
    program = Path(sys.executable).with_name("portagpu")
    ended = subprocess.run(
        [program, *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    assert "PASS" in ended.stdout
