"""The first pages of the book: what they show of a command is what it prints.

In a ``console`` block, a line after ``$`` is run in a folder that has the project's samples;
``...`` stands for any lines, and numbers of seconds may differ. ``sh`` blocks are for machines
that are not here: their words are read as the command line reads them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Child
from tests.support.command_words import assert_taken

NODE = ROOT / "docs/start-node.md"
FLEET = "portagpu fleet "
PAGES = sorted((ROOT / "docs").glob("start-*.md"))


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(command, the lines that are shown of it) of all ``console`` blocks."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            found.append((command, [line for line in lines if line and line != "..."]))
    return found


ELSEWHERE_TOO = [
    pytest.param(line, id=f"{page.stem}-{number}")
    for page in PAGES
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for number, line in enumerate(block.replace("\\\n", "").splitlines())
    if line.startswith(("portagpu ", "srun "))
]


@pytest.mark.parametrize("line", ELSEWHERE_TOO)
def test_a_command_for_another_machine_has_the_words_of_ours(line: str, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "srun":
        words = shlex.split(words[-1])
    assert_taken([word.replace("/shared", str(tmp_path)) for word in words])


def timeless(line: str) -> str:
    """A line without what goes by the time: seconds, and Slurm's sign for a node that is silent."""
    return re.sub(r"\d+\.\d+ s\b", "# s", line).replace("unknown*", "unknown")


@pytest.mark.processes(60, "each command of Slurm is one; a busy machine asks more often")
@pytest.mark.torch
def test_a_fleet_prints_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster of Slurm's own programs, whose nodes are all this machine."""
    pytest.importorskip("torch")
    slurm = pytest.importorskip("tests.support.slurm_cluster")
    shown = [each for each in commands(NODE.read_text("utf-8")) if each[0].startswith(FLEET)]
    assert len(shown) == 2
    with slurm.running() as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
        for command, lines in shown:
            assert_printed(lines, run_command(command, cluster.shared))


def run_command(command: str, folder: Path) -> Child:
    ended = subprocess.run(
        [Path(sys.executable).with_name("portagpu"), *shlex.split(command)[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Child(ended.returncode, ended.stdout, ended.stderr)


def assert_printed(lines: list[str], ended: Child) -> None:
    """Compare what a command prints with the page's lines."""
    rest = iter([timeless(line) for line in ended.out.splitlines()])
    for line in lines:
        assert timeless(line) in rest, f"{line!r} is not printed, or not there:\n{ended}"


def test_each_page_says_what_was_not_run() -> None:
    assert [page.stem for page in PAGES] == [
        "start-node",
        "start-test",
        "start-train",
    ]
    for page in PAGES:
        said = re.search(r"^> \*\*Not run", page.read_text("utf-8"), re.MULTILINE)
        assert bool(said) == (page.stem == "start-node")
