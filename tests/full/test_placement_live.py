"""A DeviceMesh of a running world: its order, and what stops it on every rank at once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")


from typing import TYPE_CHECKING

from tests.ranks.test_placement_live import values

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch


def test_the_devices_of_the_ranks_count_and_not_their_numbers(ranks: Ranks) -> None:
    # local ranks 0 and 1 have GPUs 5 and 3, which are joined
    found = values(ranks, "mesh", 4, tp=2, order=[5, 3, 0, 2])
    assert found[0]["mesh"] == [[[0, 1], [2, 3]]]
    found = values(ranks, "mesh", 4, tp=2, order=[5, 0, 3, 2])
    assert found[0]["mesh"] == [[[0, 2], [1, 3]]]


def test_tensor_groups_are_in_a_hive_of_each_machine(ranks: Ranks) -> None:
    found = values(ranks, "mesh", 8, tp=2, pp=2)
    # on each machine GPU 0 and 2 are joined, and 1 and 3
    assert found[0]["mesh"] == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]
    assert found[0]["names"] == ["pp", "dp", "tp"]
    assert [each["tp"] for each in found] == [
        [0, 2], [1, 3], [0, 2], [1, 3], [4, 6], [5, 7], [4, 6], [5, 7]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tp": 3}, "device_mesh: tp 3 x pp 1 = 3 does not divide 4 ranks (2 machines of 2)"),
        ({"tp": 2, "other": 4}, "rank 0 asks for (tp, pp, dp) (2, None, None), rank 1 for (4, "),
        ({"tp": 2, "read": "broken"}, "rank 2 cannot read the links of its machine: OSError"),
        ({"tp": 2, "order": [0, 99]}, "no source shows the device 0000:63:00.0"),
    ],
)
def test_every_rank_stops_with_the_same_line(
    ranks: Ranks, options: dict[str, Any], problem: str
) -> None:
    found = values(ranks, "mesh", 4, per_machine=2, **options)
    assert len(set(found)) == 1
    assert problem in found[0]
    assert "\n" not in found[0]
