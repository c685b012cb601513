"""Tables on terminals of some widths: no word is split while there is another way."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = ("target", "recordings", "kernels built", "verdict")
ROWS = [("amd-mi210", "recorded, loaded", "23", "PASS"), ("cpu", "-", "-", "INCONCLUSIVE")]
WORDS = {"amd-mi210", "recordings", "recorded,", "loaded", "kernels", "built", "INCONCLUSIVE"}


def printed(
    width: int, head: Sequence[str] = HEAD, rows: Sequence[Sequence[str]] = ROWS
) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    print_table(console.file, console, head, rows)
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
    text = "\n".join(printed(42))
    assert max(map(len, text.splitlines())) <= 42
    for word in ("amd-mi210", "kernels", "INCONCLUSIVE"):
        assert word in text


def test_a_first_column_of_several_words_is_folded_between_them() -> None:
    lines = printed(30, ("machine", "measure"), [("example-1 on node-0", "gemm/bf16[4096]")])
    assert [line.split() for line in lines] == [
        ["machine", "measure"],
        ["example-1", "on", "gemm/bf16[4096]"],
        ["node-0"],
    ]


@pytest.mark.parametrize("width", range(10, 46))
def test_a_name_and_a_verdict_that_are_cut_show_a_mark(width: int) -> None:
    names, verdicts = ("NVIDIA-H200-SXM5-141GB", "NVIDIA-H20"), ("INCONCLUSIVE", "PASS")
    rows = [(name, verdict, "131 GiB", "x") for name, verdict in zip(names, verdicts, strict=True)]
    lines = printed(width, ("device", "verdict", "memory", "note"), rows)
    for number, whole in enumerate((names, verdicts)):
        cells = [line.split()[number] for line in lines if line.startswith("N")]
        assert len(cells) == 2
        assert all(each in whole or each.endswith("…") for each in cells), cells
