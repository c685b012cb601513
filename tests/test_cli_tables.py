"""Tables on terminals of some widths: no word is split while there is another way."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from portagpu.cli._tables import print_table

HEAD = ("target", "recordings", "kernels built", "verdict")
ROWS = [("amd-mi210", "recorded, loaded", "23", "PASS"), ("cpu", "-", "-", "INCONCLUSIVE")]
WORDS = {"amd-mi210", "recordings", "recorded,", "loaded", "kernels", "built", "INCONCLUSIVE"}


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    print_table(console.file, console, HEAD, ROWS)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    return [line.rstrip() for line in lines]


# 9 + 10 + 7 + 12 for the longest words, and two blanks between columns
@pytest.mark.parametrize("width", [44, 50, 60, 200])
def test_words_stay_whole(width: int) -> None:
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert {word for line in lines for word in line.split()} >= WORDS


def test_what_fits_is_not_folded() -> None:
    assert len(printed(200)) == 1 + len(ROWS)


def test_a_terminal_that_is_too_narrow_shows_the_ids_and_verdicts_whole() -> None:
    text = "\n".join(printed(40))
    assert "amd-mi210" in text
    assert "INCONCLUSIVE" in text
