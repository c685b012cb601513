"""Checks on plain calls through the hooks of torch 2.14 and newer.

torch 2.13 has none, so the arguments are fakes here, with the fields and values that torch 2.15
gives (``_C/_distributed_c10d.pyi``; each row was printed by a hook on Gloo with two ranks). Where
torch has hooks, the last tests run on real groups.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch

from portagpu.base.errors import CollectiveMismatch
from portagpu.devices.collectives.calls import Call, call_of_hook, disagreement
from portagpu.devices.collectives.checked import check_plain_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.runs.world import Ranks

HOOKS = hasattr(torch._C._distributed_c10d.ProcessGroup, "register_pre_hook")


class HookOpName(enum.Enum):
    """torch's names of the operations; pybind prints them as "HookOpName.BROADCAST"."""

    SEND = 0
    BROADCAST = 2
    ALLREDUCE = 3
    ALLGATHER = 5
    REDUCE_SCATTER = 6
    ALLTOALL = 7
    BARRIER = 8
    SCATTER = 9
    GATHER = 10
    ALLREDUCE_COALESCED = 13
    ALLTOALL_BASE = 19


@dataclass
class PreHookArgs:
    name: HookOpName
    input_tensors: list[torch.Tensor] = field(default_factory=list)
    output_tensors: list[torch.Tensor] = field(default_factory=list)
    root: int = -1
    async_op: bool = False
    op_id: int = 0


ONE, TWO = torch.ones(4), [torch.ones(2), torch.ones(3)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (PreHookArgs(HookOpName.ALLREDUCE, [ONE]), "allreduce of float32[4] on cpu"),
        (
            PreHookArgs(HookOpName.BROADCAST, [ONE], root=1),
            "broadcast with root 6 of float32[4] on cpu",
        ),
        (PreHookArgs(HookOpName.ALLGATHER, [ONE], [ONE, ONE]), "allgather of float32[4] on cpu"),
        (PreHookArgs(HookOpName.BARRIER), "barrier"),
        # the input of a scatter is there on the root alone
        (
            PreHookArgs(HookOpName.SCATTER, TWO, [ONE], 0),
            "scatter with root 5 of float32[4] on cpu",
        ),
        (PreHookArgs(HookOpName.SCATTER, [], [ONE], 0), "scatter with root 5 of float32[4] on cpu"),
        (
            PreHookArgs(HookOpName.REDUCE_SCATTER, TWO, [ONE]),
            "reduce_scatter of float32[2, 3] on cpu",
        ),
        (
            PreHookArgs(HookOpName.ALLREDUCE_COALESCED, [ONE, ONE.double()]),
            "allreduce_coalesced of float32 and float64[4, 4] on cpu",
        ),
        (
            PreHookArgs(HookOpName.ALLTOALL_BASE, [torch.ones(5, 3)]),
            "alltoall_base of float32[3] on cpu",
        ),
    ],
)
def test_a_hook_s_arguments_say_what_was_called(arguments: PreHookArgs, said: str) -> None:
    assert str(call_of_hook(arguments, (5, 6))) == said


def test_the_parts_of_an_all_to_all_are_compared_pair_by_pair() -> None:
    def exchange(sends: list[int], receives: list[int]) -> Call:
        arguments = PreHookArgs(
            HookOpName.ALLTOALL,
            [torch.ones(each) for each in sends],
            [torch.ones(each) for each in receives],
        )
        found = call_of_hook(arguments, (0, 1))
        assert found is not None
        return found

    assert disagreement({0: exchange([1, 2], [1, 3]), 1: exchange([3, 4], [2, 4])}) == ""
    bad = disagreement({0: exchange([1, 2], [1, 3]), 1: exchange([3, 4], [9, 4])})
    assert bad == "rank 0 sends 2 rows to rank 1 in alltoall, and rank 1 receives 9"


def test_messages_between_two_ranks_are_not_compared() -> None:
    assert call_of_hook(PreHookArgs(HookOpName.SEND, [ONE], root=1), (0, 1)) is None


class FakeGroup:
    """The three methods of torch's ProcessGroup that are used."""

    def __init__(self) -> None:
        self.hooks: dict[int, Callable[[PreHookArgs], None]] = {}

    def register_pre_hook(self, hook_id: int, hook: Callable[[PreHookArgs], None]) -> None:
        assert hook_id not in self.hooks
        self.hooks[hook_id] = hook

    def unregister_pre_hook(self, hook_id: int) -> None:
        del self.hooks[hook_id]


class FakeChecked:
    ranks = (0, 1)

    def __init__(self, group: Any) -> None:
        self.group = group
        self.calls: list[Call] = []

    def compare_plain_call(self, call: Call) -> None:
        self.calls.append(call)
        if call.shape == (5,):
            raise CollectiveMismatch("both sides")


def test_the_hook_compares_and_raises_until_it_is_removed() -> None:
    group = FakeGroup()
    checked: Any = FakeChecked(group)
    stop = check_plain_calls(checked)
    assert stop is not None
    (hook,) = group.hooks.values()
    hook(PreHookArgs(HookOpName.ALLREDUCE, [ONE]))
    hook(PreHookArgs(HookOpName.SEND, [ONE]))
    with pytest.raises(CollectiveMismatch, match="both sides"):
        hook(PreHookArgs(HookOpName.ALLREDUCE, [torch.ones(5)]))
    assert [call.name for call in checked.calls] == ["allreduce", "allreduce"]
    stop()
    assert not group.hooks


def test_without_hooks_plain_calls_are_not_compared() -> None:
    checked: Any = FakeChecked(object())
    assert check_plain_calls(checked) is None


@pytest.mark.skipif(not HOOKS, reason="this torch's groups have no hooks")
@pytest.mark.parametrize("kind", ["shape", "dtype", "collective", "root", "late"])
def test_plain_calls_that_differ_name_both_sides(ranks: Ranks, kind: str) -> None:
    reported = ranks.run(
        "tests.support.comm_ranks:plain", 2, arguments={"kind": kind}, backend="cpu", timeout_s=60.0
    ).values
    for rank, found in enumerate(reported):
        name, message, _ = found["first"]
        if kind == "late":
            assert name == ("CollectiveError" if rank else "RankLost")
            assert "for this one and left" in message if rank else "rank 1 did not call" in message
        else:
            assert name == "CollectiveMismatch"
            assert "rank 1 called" in message
        assert "\n" not in message
        assert found["good"] == 2.0
        assert found["tensor"] == [1.0] * 4
        assert found["after"] == 2.0
