"""Counters of memory: the model by hand, and faults that programs find."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


from tests.ranks.test_search_memory import first_programs

pytestmark = pytest.mark.torch


def test_the_cpu_passes(search_ranks):
    assert first_programs(search_ranks, [""], 40) == [["", 40]]
