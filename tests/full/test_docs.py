"""What the text of the largest folders names exists."""

from __future__ import annotations

import pytest

from tests.pages.test_docs import named_things_exist


@pytest.mark.parametrize("folder", ["portagpu", "tests"])
def test_what_docstrings_and_comments_name_exists(folder: str) -> None:
    named_things_exist(folder)
