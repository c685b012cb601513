"""What verbs and functions print of saved inputs is what was read when it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.golden import assert_golden
from tests.support.looped import rest
from tests.unit.test_golden import NAMES
from tests.vendor_texts.test_golden import NAMES as NAMES_OF_TEXTS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", [*rest(NAMES), *rest(NAMES_OF_TEXTS)])
def test_what_is_printed_is_what_was_read(name: str, tmp_path: Path) -> None:
    assert_golden(name, tmp_path)
