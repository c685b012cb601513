"""The area of collectives: its model by hand, right devices, and faults by their sentences."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


from typing import TYPE_CHECKING

from tests.ranks.test_search_collectives import call, run

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks


CAUGHT = [
    ("all_reduce: everywhere: takes zeros of the last rank", [call("all_reduce")],
     ("in the result, not", "which is the SUM without rank 3")),
    ("all_reduce: everywhere: takes another op", [call("all_reduce")], ("which is the MAX",)),
    ("all_reduce: everywhere: writes nothing", [call("all_reduce")],
     ("what was there before the call: nothing was written",)),
    ("broadcast: everywhere: takes the next root", [call("broadcast", root=1)],
     ("broadcast of 12 int32 on ranks 0, 1, 2, 3: rank 0", "which is the input of rank 2")),
    ("all_gather_into_tensor: everywhere: is off by one element", [call("all_gather_into_tensor")],
     ("rank 0", "at element 0 of 12 of part 0")),
    ("all_gather: everywhere: swaps the parts of the first two ranks", [call("all_gather")],
     ("in output 0", "which is the input of rank 1")),
    ("reduce_scatter: everywhere: leaves the last element", [call("reduce_scatter")],
     ("at element 11 of 12", "(1 of 12 elements are wrong)")),
    ("scatter: everywhere: changes its input", [call("scatter", root=2)],
     ("rank 2", "what the call only reads was changed")),
    ("all_to_all_single: everywhere: writes after the end", [call("all_to_all_single")],
     ("wrote 0 after",)),
    ("all_to_all_single: of parts of different sizes: raises",
     [call("all_to_all_single", uneven=True, dtype="int64", shape="flat")],
     ("raised RuntimeError: no such algorithm",)),
    ("all_reduce: on rank 2: loses four bits",
     [call("all_reduce", dtype="float32", values="random"), ["wait", {"which": "all"}]],
     ("rank 2 got", "within")),
    ("all_reduce: asynchronous: is not waited for",
     [call("all_reduce", n=300_007, how="wait")], ("rank",)),
    ("irecv: everywhere: leaves the first element", [call("message", how="later")],
     ("rank 1 got", "at element 0 of 12 in the message")),
    ("gather: of the root's own part in place: is off by one element",
     [call("gather", root=1, in_place=True)], ("rank 1 got", "further left")),
    ("functional.reduce_scatter_tensor: of several dimensions: takes it for contiguous",
     [call("reduce_scatter_functional", dtype="float32", shape="apart")],
     ("reduce_scatter_functional SUM of 12 float32", "got")),
    ("all_gather_single: in a group of one: writes nothing",
     [call("all_gather_single", group="one")], ("rank 3",)),
]  # fmt: skip


@pytest.mark.parametrize(("world", "count"), [(4, 80), (3, 40), (2, 40)])
def test_right_programs_differ_in_nothing(search_ranks: Ranks, world: int, count: int) -> None:
    found = run(search_ranks, "right_programs", world, number=world, count=count)
    assert len(found) >= count // 2
    assert [each for each in found if each] == []


def test_faults_are_named(search_ranks: Ranks) -> None:
    cases = [(fault, program) for fault, program, _ in CAUGHT]
    found = run(search_ranks, "faulty_programs", 4, cases=cases)
    for (fault, _, words), sentence in zip(CAUGHT, found, strict=True):
        for each in words:
            assert each in sentence, f"{fault}: {sentence}"
