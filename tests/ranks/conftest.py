"""What tests of ranks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


@pytest.fixture
def search_ranks(ranks: Ranks) -> Ranks:
    """The rank server, from which ranks that search begin at once."""
    from tests.support.search_ranks import prepare

    return prepare(ranks)
