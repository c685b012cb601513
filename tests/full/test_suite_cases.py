"""The suite as a product: ids, specifications, and a case for every public name and claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, seed, settings

import portagpu
from portagpu.suites.search.area import load_area
from tests.torch.test_suite_cases import cases as cases

if TYPE_CHECKING:
    from portagpu.suites.conformance.messages import ListedCase


def test_every_reduce_op_of_the_cpu_is_drawn_and_asked_of_one_rank(
    cases: list[ListedCase],
) -> None:
    pytest.importorskip("torch")
    gpu = portagpu.backend("cpu")
    search = next(each for each in cases if each.id == "collectives/random-programs[n2]")
    assert "Comm.reduce_ops" in search.covers
    drawn: set[tuple[str, str]] = set()

    @settings(max_examples=2000, database=None, deadline=None, phases=[Phase.generate])
    @seed(0)
    @given(load_area(search.search).programs(gpu))
    def draw(program: Any) -> None:
        drawn.update((name, given["op"]) for name, given in program if "op" in given)

    draw()
    ids = {each.id for each in cases}
    for op in gpu.comm.reduce_ops:
        for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"):
            assert (name, op) in drawn, f"no program has {name} {op}"
        assert f"collectives/all-reduce-alone[{op}]" in ids, f"no case for the reduce op {op}"
