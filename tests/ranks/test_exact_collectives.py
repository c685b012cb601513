"""Collectives of integers: every rank judges every element, and the wrong rank is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.train.exact.collectives import PROBES

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

NAMES = [probe.name for probe in PROBES]


def values(ranks: Ranks, world: int, **arguments: Any) -> list[Any]:
    function = "tests.support.exact_ranks:judged"
    return ranks.run(function, world, arguments=arguments, backend="cpu", timeout_s=60.0).values


@pytest.mark.parametrize("world", [2, 3])
def test_sound_ranks_pass_every_collective(ranks: Ranks, world: int) -> None:
    for found in values(ranks, world, names=NAMES, spoilt=None):
        assert found == dict.fromkeys(NAMES, 0)


def test_each_rank_sees_the_wrong_element_that_it_received(ranks: Ranks) -> None:
    found = values(ranks, 3, names=NAMES, spoilt=1)
    assert found[0] == found[2] == dict.fromkeys(NAMES, 0)
    assert found[1] == dict.fromkeys(NAMES, 1)


def test_one_process_refuses(ranks: Ranks) -> None:
    (found,) = values(ranks, 1, names=NAMES, spoilt=None)
    assert found == dict.fromkeys(
        NAMES, "it needs two devices or more that a communication library joins"
    )
