"""What verbs and functions print of saved inputs is what was read when it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.golden import FOLDER, assert_golden, goldens

if TYPE_CHECKING:
    from pathlib import Path


NAMES = [name for name, each in goldens().items() if each.tier == "unit"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_is_what_was_read(name: str, tmp_path: Path) -> None:
    assert_golden(name, tmp_path)


def test_every_golden_file_is_made() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(goldens())
