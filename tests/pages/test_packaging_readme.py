"""README: its commands run, its outputs are what is printed, and its tables are the code's.

The first two ``sh`` blocks of README.md are complete commands for a fresh machine, each one chain
of ``&&``: the first installs portagpu and runs the main job, the second passes the tests. In a
``console`` block, ``...`` stands for any lines, and numbers of seconds may differ.
"""

from __future__ import annotations

import re
import shlex
import struct
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from portagpu.contract import CONTRACT
from portagpu.results.run import Evidence, Verdict, exit_code
from tests.conftest import ROOT
from tests.support.history_samples import measure, run

JOB_LIMIT_S: Final = 600
MOST_BYTES: Final = 150 * 1024
"""Of one picture: README is read over slow lines too."""

TEXT: Final = (ROOT / "README.md").read_text("utf-8")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def blocks() -> list[list[str]]:
    """The commands of each ``sh`` block, split at ``&&``."""
    found = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(found) >= 2, "README.md must show two complete commands as ```sh blocks"
    return [[part.strip() for part in block.replace("\\\n", " ").split("&&")] for block in found]


def section(title: str) -> str:
    """The text under a heading of README, up to the next one of that level or above."""
    level = len(title) - len(title.lstrip("#"))
    found = re.search(
        rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", TEXT, re.MULTILINE | re.DOTALL
    )
    assert found, f"README.md has no section {title!r}"
    return found[1]


def portagpu(*words: str, cwd: Path, limit_s: int = 120) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("portagpu")
    return subprocess.run(
        [program, *words], cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False
    )


def shown(command: str) -> list[str]:
    """The lines that README shows below a command, without those that are ``...``."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"README.md does not show {command!r}"
    return [line for line in found[1].splitlines() if line and line != "..."]


def timeless(line: str) -> str:
    return re.sub(r"\d+\.\d+ s\b", "# s", line)


def assert_in_order(expected: list[str], printed: str) -> None:
    lines = iter([timeless(line) for line in printed.splitlines()])
    for line in expected:
        assert timeless(line) in lines, f"README shows what is not printed there: {line}\n{printed}"


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
    assert set(extras) <= set(PROJECT["optional-dependencies"]), f"{requirement} does not exist"


def test_test_command_is_the_one_that_continuous_checks_run(blocks: list[list[str]]) -> None:
    command = " && ".join(" ".join(part.split()) for part in blocks[1])
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert command in script.splitlines(), f".ci/run must run exactly: {command}"


@pytest.mark.torch
@pytest.mark.first
def test_main_job_command_ends_in_a_verdict_of_pass(
    blocks: list[list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    words = shlex.split(blocks[0][-1])
    ended = portagpu(*words[1:], cwd=tmp_path, limit_s=JOB_LIMIT_S)
    assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    assert "PASS" in ended.stdout
    below = section("## Check this machine").partition("```console\n")[2].partition("```")[0]
    lines = [line for line in below.splitlines() if line and line != "..."]
    gates = [line[13:34].strip() for line in lines if re.search(r"\d s  ", line)]
    assert len(gates) > 3
    # verdicts and numbers go by the machine; titles and files do not
    assert_in_order(gates, "\n".join(line[13:34].strip() for line in ended.stdout.splitlines()))
    assert_in_order([line for line in lines if line.startswith("wrote")], ended.stdout)


@pytest.mark.torch
def test_training_example_prints_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = re.search(
        r"^```python\n(.*?)^```", section("### 1. Train on any vendor"), re.MULTILINE | re.DOTALL
    )
    assert code
    (tmp_path / "train.py").write_text(code[1])
    command = "torchrun --standalone --nproc_per_node=2 train.py"
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[0::2] for line in shown(command)] == [["cpu", "Gloo"]]
    assert [line.split()[0::2] for line in ended.stdout.splitlines()] == [["cpu", "Gloo"]]


@pytest.mark.torch
def test_conformance_example_prints_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (command,) = re.findall(r"^\$ portagpu (conform .*)$", TEXT, re.MULTILINE)
    ended = portagpu(*shlex.split(command), "--backend", "cpu", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert_in_order(shown(f"portagpu {command}"), ended.stdout)


def test_recording_example_prints_what_is_shown() -> None:
    (command,) = re.findall(r"^\$ portagpu (bringup --replay .*)$", TEXT, re.MULTILINE)
    ended = portagpu(*shlex.split(command), cwd=ROOT)
    assert ended.returncode == 1, ended.stdout
    lines = shown(f"portagpu {command}")
    assert len(lines) > 4
    assert_in_order(lines, ended.stdout)


def test_comparing_runs_prints_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    part = section("### 5. Compare runs and machines")
    commands = re.findall(r"^\$ portagpu (.*)$", part, re.MULTILINE)
    files = [words[-1] for words in map(shlex.split, commands) if words[0] == "bench"]
    for day, file in enumerate(files):
        run(day, [measure("memory/copy", 20.0)]).write_json(tmp_path / file)
    rest = [command for command in commands if not command.startswith("bench")]
    assert (len(files), len(rest)) == (2, 3)
    for command in rest:
        ended = portagpu(*shlex.split(command), cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        after = re.search(
            rf"^\$ portagpu {re.escape(command)}\n(.*?)^(?:\$|```)", part, re.MULTILINE | re.DOTALL
        )
        assert after
        assert_in_order([line for line in after[1].splitlines() if line != "..."], ended.stdout)


def test_each_command_has_a_row() -> None:
    helped = portagpu("--help", cwd=ROOT).stdout.partition("Verbs:")[2]
    verbs = re.findall(r"^  (\w+) ", helped, re.MULTILINE)
    rows = re.findall(r"^\| `portagpu (\w+)` \|", section("## The commands"), re.MULTILINE)
    assert sorted(rows) == sorted(verbs)


def test_each_verdict_is_explained_once() -> None:
    words = re.findall(r"\*\*([A-Z]+)\*\*", section("## The verdicts"))
    assert sorted(words) == sorted(Verdict)
    assert "one of six words" in section("## The verdicts")
    assert len(Verdict) == 6


def test_exit_codes_are_those_of_the_verdicts() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", section("## Check a GPU node"), re.MULTILINE)
    stated = {int(code): re.findall(r"\b[A-Z]{4,}\b", words) for code, words in rows}
    for verdict in (Verdict.PASS, Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE):
        assert verdict in stated[exit_code(verdict)]
    assert Verdict.UNVERIFIED in stated[exit_code(Verdict.UNVERIFIED)]
    assert sorted(stated) == [0, 1, 2, 3, 130]


def test_each_badge_that_was_earned_is_explained() -> None:
    under = section("## What is supported")
    badges = re.findall(r"^- `(\w+)`:", under, re.MULTILINE)
    assert badges == [each for each in Evidence if each is not Evidence.EMULATED]
    rows = "".join(re.findall(r"^\|.*", under, re.MULTILINE))
    assert badges == re.findall(r"`(\w+)`", rows)


def test_the_targets_that_are_named_exist() -> None:
    named = set(re.findall(r"\b(?:nvidia|amd)-[a-z0-9-]+", TEXT)) - {"amd-smi", "nvidia-smi"}
    assert named
    for name in sorted(named):
        assert (ROOT / "matrix" / "targets" / f"{name}.toml").is_file(), f"no target {name}"


def test_versions_are_the_project_s() -> None:
    pythons = [re.search(r"(3\.\d+)$", line) for line in PROJECT["classifiers"]]
    known = [found[1] for found in pythons if found]
    assert f"Python {known[0]} to {known[-1]}" in TEXT
    assert f"It is now {CONTRACT[0]}.{CONTRACT[1]}." in section("## What stays stable")


@pytest.mark.parametrize("path", re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT))
def test_pictures_are_small(path: str) -> None:
    data = (ROOT / path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert len(data) < MOST_BYTES
    assert width <= 1000
    assert height <= 1200


def test_there_is_a_picture_of_a_pass_and_of_a_failure() -> None:
    assert len(re.findall(r"!\[Report of a (passing|failing) ", TEXT)) == 2
