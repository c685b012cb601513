"""More mutations of recordings: each is read, or refused in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fuzz_trees import own
from tests.support.read_parts import read_all
from tests.vendor_texts.test_hostile_recordings import (
    mutated_texts_are_read,
    mutated_trees_are_read,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("machine", list(own()), ids=lambda machine: machine.name)
def test_no_mutation_of_a_tree_breaks_its_readers(tmp_path: Path, machine: Any) -> None:
    mutated_trees_are_read(machine, 25, tmp_path)


def test_no_mutation_of_a_text_breaks_what_is_made_of_it(tmp_path: Path) -> None:
    mutated_texts_are_read(4, tmp_path)


def test_one_long_line_of_a_table_is_read_in_linear_time() -> None:
    text = "GPU  POWER  GFX_CLK\n" + "0 " + "x " * (1 << 21) + "\n"
    assert read_all(text + "0  10 W  100 MHz\n").readings
