"""The first pages of the book: what they show of a command is what it prints.

In a ``console`` block, a line after ``$`` is run in a folder that has the project's samples;
``...`` stands for any lines, and numbers of seconds may differ. ``sh`` blocks are for machines
that are not here: their words are read as the command line reads them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, run_child
from tests.pages.test_start_pages import FLEET, PAGES, assert_printed, commands

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.forked_verbs import ForkedVerbs


ELSEWHERE = (
    "portagpu bringup --out bringup",
    "portagpu bench ",
    "portagpu matrix ",
    "torchrun ",
    "portagpu profile ",
    "portagpu trace ",
    "python -P -m portagpu",
)
"""tests/pages/test_packaging_readme.py runs most of them, and tests/full all but the last."""

SHOWN = [
    pytest.param(command, lines, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (command, lines) in enumerate(commands(page.read_text("utf-8")))
    if not command.startswith((FLEET, *ELSEWHERE))
]


@pytest.mark.parametrize(("command", "lines"), SHOWN)
def test_a_command_prints_what_is_shown(
    command: str,
    lines: list[str],
    tmp_path: Path,
    verbs: ForkedVerbs,
) -> None:
    program, *words = shlex.split(command)
    assert program == "portagpu"
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    if "--replay" in words:
        ended = verbs(*words, folder=tmp_path)
    else:
        pytest.importorskip("torch")
        ended = run_child(tmp_path, "-m", "portagpu", *words)
    assert_printed(lines, ended)
