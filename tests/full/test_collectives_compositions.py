"""Every composition of the library's calls leaves what its own call leaves, on two ranks."""

from __future__ import annotations

import pytest

from portagpu.devices.collectives.algorithms import WAYS
from portagpu.runs.world import Ranks
from tests.support import tune_faults

pytestmark = pytest.mark.torch


def test_every_way_leaves_what_the_librarys_call_leaves() -> None:
    with Ranks() as ranks:
        outcome = ranks.run(f"{tune_faults.__file__}:every_way", 2, backend="cpu")
    assert outcome.ok, outcome.sentence
    for found in outcome.values:
        assert len(found) == 3 * sum(map(len, WAYS.values()))
        assert not [each for each in found if not each[3]]
