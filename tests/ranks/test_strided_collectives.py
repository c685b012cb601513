"""Collectives of tensors with gaps, of another layout on each rank: right, and seen where not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2]))

from portagpu.suites.search.area import load_area

if TYPE_CHECKING:
    from portagpu.runs.world import Rank, Ranks

HERE = str(Path(__file__))
LIMIT_S = 60.0
WRONG = ("all_reduce", "broadcast", "reduce", "scatter", "reduce_scatter")
"""What Gloo of torch 2.13 does on tensors with gaps without an error, and wrongly
(pytorch#192920 reports the first four)."""
REST = ("all_gather", "gather", "all_gather_into_tensor", "reduce_scatter_tensor", "message")


def run(ranks: Ranks, function: str, **arguments: Any) -> Any:
    """What that function of this file returned on rank 0."""
    outcome = ranks.run(
        f"{HERE}:{function}", 2, arguments=arguments, backend="cpu", group=True, timeout_s=LIMIT_S
    )
    return outcome.values[0]


def differences(rank: Rank, names: list[str], plain: bool) -> list[str] | None:
    """The difference of each call on tensors with gaps; ``plain`` is Gloo without the backend."""
    from portagpu_cpu.strided import make_contiguous

    if plain:
        make_contiguous()()
    area = load_area("collectives-2")
    if rank.rank:
        area.follow(rank)
        return None
    usual = {"group": "same", "n": 12, "dtype": "float32", "seed": 3, "shape": "apart"}
    found = [area.difference(rank, [(name, usual)]) for name in names]
    area.end(rank)
    return found


def test_plain_gloo_is_seen_to_be_wrong(search_ranks: Ranks) -> None:
    found = run(search_ranks, "differences", names=WRONG, plain=True)
    for name, sentence in zip(WRONG, found, strict=True):
        assert name in sentence
        assert "in the " in sentence or "between the elements" in sentence, sentence


def test_the_backend_is_right(search_ranks: Ranks) -> None:
    names = [*WRONG, "all_to_all_single", *REST]
    assert run(search_ranks, "differences", names=names, plain=False) == [""] * len(names)


def shared_elements(rank: Rank) -> list[Any]:
    """What becomes of a tensor that has one element in memory, and of a sum that is not awaited."""
    import torch
    import torch.distributed as dist

    value = torch.ones(1).expand(4)
    try:
        dist.all_reduce(value)
        said = ""
    except ValueError as error:
        said = str(error)
    column = torch.full((3, 2), 1.0 + rank.rank)
    work = dist.all_reduce(column[:, 0], async_op=True)
    work.wait()
    return [said, column.tolist()]


def test_elements_that_share_memory_are_refused(ranks: Ranks) -> None:
    said, column = run(ranks, "shared_elements")
    assert said == (
        "all_reduce would write several elements into the same memory: give tensor.contiguous(), "
        "and copy the result back"
    )
    assert column == [[3.0, 1.0]] * 3
