"""README: its commands run, its outputs are what is printed, and its tables are the code's.

The first two ``sh`` blocks of README.md are complete commands for a fresh machine, each one chain
of ``&&``: the first installs portagpu and runs the main job, the second passes the tests. In a
``console`` block, ``...`` stands for any lines, and numbers of seconds may differ.
"""

from __future__ import annotations

import re
import shlex
import struct
import tomllib
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.devices.contract import CONTRACT
from portagpu.runs.results.run import Evidence, Verdict, exit_code
from tests.conftest import ROOT
from tests.support.readme import (
    TEXT,
    WHY,
    assert_gates,
    assert_in_order,
    assert_trained,
    section,
    shell_blocks,
    shown,
    training_example,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child
    from tests.support.forked_verbs import ForkedVerbs

MAX_WORDS: Final = 1200
MAX_BYTES: Final = 150 * 1024
"""Of one picture: README is read over slow lines too."""

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_main_job_command_makes_its_own_environment() -> None:
    make, install, job = (shlex.split(part) for part in shell_blocks()[0])
    assert make == ["python3", "-m", "venv", ".venv"]
    assert install[:2] == [".venv/bin/pip", "install"]
    assert job[:2] == [".venv/bin/portagpu", "bringup"]


def test_what_the_main_job_command_installs_exists() -> None:
    words = shlex.split(shell_blocks()[0][1])[2:]
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file()
    (requirement,) = (word for word in words if word.startswith("."))
    extras = re.findall(r"\w+", requirement.removeprefix("."))
    assert set(extras) <= set(PROJECT["optional-dependencies"]), f"{requirement} does not exist"


def test_test_command_is_the_one_that_continuous_checks_run() -> None:
    command = " && ".join(" ".join(part.split()) for part in shell_blocks()[1])
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert command in script.splitlines(), f".ci/run must run exactly: {command}"


def test_main_job_command_prints_what_is_shown(verbs: ForkedVerbs, tmp_path: Path) -> None:
    """With a recording, which runs nothing here; tests/full has this machine and its verdict."""
    words = shlex.split(shell_blocks()[0][-1])[1:]
    recording = ROOT / "tests/vendor_texts/formats/nvidia_smi_xml/v11-mig-throttled.xml"
    assert_gates(verbs(*words, "--replay", str(recording), folder=tmp_path).out)


def test_the_first_screen_has_three_doors() -> None:
    """Each is a command, what it prints, and one link to a start page."""
    screen = "\n".join(TEXT.splitlines()[:50]).partition("\n## Check this machine")[0]
    doors = re.split(r"^## ", screen, flags=re.MULTILINE)[1:]
    assert len(doors) == 3
    for door in doors:
        assert re.search(r"^```console\n\$ .+\n.+", door, re.MULTILINE)
        assert len(re.findall(r"\(docs/start-[a-z]+\.md\)", door)) == 1


def test_readme_is_short() -> None:
    assert len(TEXT.split()) <= MAX_WORDS


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_training_example_prints_what_is_shown(child: Callable[..., Child]) -> None:
    """Alone, as it also runs; tests/full has it with two ranks."""
    pytest.importorskip("torch")
    assert_trained(child("-c", training_example()).ok())


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_conformance_example_prints_what_is_shown(child: Callable[..., Child]) -> None:
    pytest.importorskip("torch")
    (command,) = re.findall(r"^\$ portagpu (conform .*)$", TEXT, re.MULTILINE)
    ended = child("-m", "portagpu", *shlex.split(command), "--backend", "cpu")
    assert_in_order(shown(f"portagpu {command}"), ended.ok())


def test_each_command_has_a_row(verbs: ForkedVerbs) -> None:
    helped = verbs("--help").out.partition("Options:")[2].partition("\n\n")[2]
    listed = re.findall(r"^  (\w+) ", helped, re.MULTILINE)
    rows = re.findall(r"^\| `portagpu (\w+)` \|", section("## The commands"), re.MULTILINE)
    assert sorted(rows) == sorted(listed)


def test_each_verdict_is_explained_once() -> None:
    words = re.findall(r"\*\*([A-Z]+)\*\*", section("## The verdicts"))
    assert sorted(words) == sorted(Verdict)
    assert "one of six words" in section("## The verdicts")
    assert len(Verdict) == 6


def test_exit_codes_are_those_of_the_verdicts() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", section("## The verdicts"), re.MULTILINE)
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
    assert f"It is now {CONTRACT[0]}.{CONTRACT[1]}." in section("## What stays stable", WHY)


@pytest.mark.parametrize("path", re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT))
def test_pictures_are_small(path: str) -> None:
    data = (ROOT / path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert len(data) < MAX_BYTES
    assert width <= 1000
    assert height <= 1200


def test_there_is_a_picture_of_a_pass_and_of_a_failure() -> None:
    assert len(re.findall(r"!\[Report of a (passing|failing) ", TEXT)) == 2
