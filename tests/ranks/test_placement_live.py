"""A DeviceMesh of a running world: its order, and what stops it on every rank at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.machine.placement import device_mesh

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

RANKS = "tests.support.placement_ranks"


def values(ranks: Ranks, function: str, world: int, **options: Any) -> list[Any]:
    return ranks.run(
        f"{RANKS}:{function}", world, arguments=options, backend="cpu", timeout_s=120.0
    ).values


def test_ranks_keep_their_order_where_no_address_is_known(ranks: Ranks) -> None:
    found = values(ranks, "mesh", 4, tp=2, known=False)
    assert found[0]["mesh"] == [[[0, 1], [2, 3]]]


def test_the_mesh_of_cpus_reduces(ranks: Ranks) -> None:
    found = values(ranks, "plain", 2)
    assert found == [{"mesh": [[[0, 1]]], "sum": 2.0}] * 2


def test_machines_with_unequal_ranks_are_named(ranks: Ranks) -> None:
    (problem,) = set(values(ranks, "mesh", 3, per_machine=2, tp=1))
    assert "machines have 1 to 2 ranks (rank 2 is on one with 1)" in problem


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ValueError, match="needs an initialised process group"):
        device_mesh(tp=2)
