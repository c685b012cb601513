"""Collectives in traces: operation, bytes, dtype, group and sequence, as a reader finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.devices.collectives import annotated
from portagpu.devices.collectives.algorithms import TunedGroup
from portagpu.devices.collectives.annotated import CollectiveMarks, annotate_plain_calls
from portagpu.facts.captures.labels import COLLECTIVE, COLLECTIVE_LABELS, decode
from portagpu.facts.captures.model import EVENT_COLUMNS
from tests.torch.test_comm_hooks import HookOpName, PreHookArgs

ONE = torch.ones(4)


def collectives_in(profile, folder):
    """(operation, labels) of the annotated collectives in the file of torch's profiler."""
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    marks = [decode(each["name"]) for each in events if each.get("cat") == "user_annotation"]
    return [(name, labels) for name, labels, domain in marks if domain == COLLECTIVE]


def test_the_labels_are_columns_of_the_schema():
    assert set(COLLECTIVE_LABELS) <= EVENT_COLUMNS.keys()


def test_checked_calls_say_what_they_move(tmp_path):
    gpu = pg.backend("cpu")
    with gpu.comm.init(rank=0, world_size=1, checked=True) as world:
        calls = world.checked
        calls.barrier()
        with torch.profiler.profile() as profile:
            calls.all_reduce(ONE.clone())
            calls.broadcast(torch.ones(3, dtype=torch.int64), 0)
            calls.barrier()
            calls.reduce_scatter(torch.ones(2), [torch.ones(2)])
            calls.all_gather_into_tensor(torch.ones(5), torch.ones(5))
            calls.all_to_all_single(torch.ones(6), torch.ones(6))
            pending = calls.gather(torch.ones(1), [torch.ones(1)], async_op=True)
            pending.wait()
    found = collectives_in(profile, tmp_path)
    group = {"group": found[0][1]["group"], "group_size": 1}
    first = found[0][1]["sequence"]
    expected = [
        ("all_reduce", {"bytes": 16, "dtype": "float32", "reduce_op": "SUM"}),
        ("broadcast", {"bytes": 24, "dtype": "int64", "root": 0}),
        ("barrier", {}),
        ("reduce_scatter", {"bytes": 8, "dtype": "float32", "reduce_op": "SUM"}),
        ("all_gather_into_tensor", {"bytes": 20, "dtype": "float32"}),
        ("all_to_all_single", {"bytes": 24, "dtype": "float32"}),
        ("gather", {"bytes": 4, "dtype": "float32", "root": 0}),
    ]
    assert found == [
        (name, {**group, "sequence": first + number, **labels})
        for number, (name, labels) in enumerate(expected)
    ]


def test_tuned_calls_say_what_they_move(tmp_path):
    gpu = pg.backend("cpu")
    profile_of_nothing = SimpleNamespace(
        entries=(), check_ranks=lambda *ranks: None, find=lambda *question: None
    )
    with gpu.comm.init(rank=0, world_size=1):
        tuned = TunedGroup(profile_of_nothing, None, 1, marks=gpu.comm._marks())
        with torch.profiler.profile() as profile:
            tuned.all_reduce(ONE.clone())
            tuned.all_reduce_many([ONE.clone(), ONE.clone()])
            tuned.all_gather_into_tensor(torch.ones(4), ONE)
            tuned.reduce_scatter_tensor(torch.ones(4), input=ONE)
            tuned.broadcast(ONE.clone())
        assert tuned._around("all_reduce", [ONE]) is tuned._around("broadcast", [ONE])
    found = collectives_in(profile, tmp_path)
    assert [(name, labels["bytes"], labels["dtype"]) for name, labels in found] == [
        ("all_reduce", 16, "float32"),
        ("all_reduce_many", 32, "float32"),
        ("all_gather_into_tensor", 16, "float32"),
        ("reduce_scatter_tensor", 16, "float32"),
        ("broadcast", 16, "float32"),
    ]


@dataclass
class PostHookArgs:
    """As in torch 2.15's c10d/Hooks.hpp."""

    name: HookOpName
    op_id: int = 0
    async_op: bool = False
    work: Any = None


class FakeGroup:
    """What is used of torch 2.14's ProcessGroup; see tests/torch/test_comm_hooks.py."""

    group_name = "7"

    def __init__(self) -> None:
        self.pre: dict[int, Any] = {}
        self.post: dict[int, Any] = {}
        self.sequence = 40
        self.register_pre_hook = self.pre.__setitem__
        self.register_post_hook = self.post.__setitem__
        self.unregister_pre_hook = self.pre.__delitem__
        self.unregister_post_hook = self.post.__delitem__

    def size(self) -> int:
        return 2

    def _get_sequence_number_for_group(self) -> int:
        return self.sequence

    def call(self, arguments: PreHookArgs, number: int, fails: bool = False) -> None:
        arguments.op_id = number
        for hook in self.pre.values():
            hook(arguments)
        self.sequence += 1
        if not fails:
            for hook in self.post.values():
                hook(PostHookArgs(arguments.name, number))


class Blocks:
    """A handle that notes the blocks that are made, entered and left."""

    def __init__(self) -> None:
        self.listening = True
        self.reported: list[Any] = []

    def listens(self) -> bool:
        return self.listening

    def labelled_block(self, name, labels, domain):
        reported = self.reported

        class Block:
            def __enter__(self):
                reported.append((name, labels, domain))

            def __exit__(self, *raised):
                reported.append(f"end of {name}")

        return Block()


@pytest.fixture
def hooked():
    group, blocks = FakeGroup(), Blocks()
    stop = annotate_plain_calls(CollectiveMarks(group, blocks.listens, blocks.labelled_block))
    yield group, blocks
    stop()
    assert not group.pre
    assert not group.post


def test_hooks_annotate_torchs_own_calls(hooked):
    group, blocks = hooked
    group.call(PreHookArgs(HookOpName.ALLREDUCE, [ONE]), 1)
    group.call(PreHookArgs(HookOpName.SCATTER, [ONE, ONE], [ONE.double()], 0), 2)
    group.call(PreHookArgs(HookOpName.ALLREDUCE_COALESCED, [ONE, ONE.double()]), 3)
    group.call(PreHookArgs(HookOpName.BARRIER), 4)
    group.call(PreHookArgs(HookOpName.SEND, [ONE], root=1), 5)
    same = {"group": "7", "group_size": 2}
    assert blocks.reported[::2] == [
        ("all_reduce", {"bytes": 16, "dtype": "float32", **same, "sequence": 40}, COLLECTIVE),
        ("scatter", {"bytes": 32, "dtype": "float64", **same, "sequence": 41}, COLLECTIVE),
        (
            "all_reduce_coalesced",
            {"bytes": 48, "dtype": "float32 and float64", **same, "sequence": 42},
            COLLECTIVE,
        ),
        ("barrier", {**same, "sequence": 43}, COLLECTIVE),
        ("send", {"bytes": 16, "dtype": "float32", **same}, COLLECTIVE),
    ]
    assert blocks.reported[1::2] == [f"end of {reported[0]}" for reported in blocks.reported[::2]]


def test_a_call_that_failed_leaves_no_block_open(hooked):
    group, blocks = hooked
    group.call(PreHookArgs(HookOpName.ALLREDUCE, [ONE]), 1, fails=True)
    group.call(PreHookArgs(HookOpName.BARRIER), 2)
    names = [each if isinstance(each, str) else each[0] for each in blocks.reported]
    assert names == ["all_reduce", "end of all_reduce", "barrier", "end of barrier"]


def test_hooks_are_silent_where_nothing_listens_and_inside_our_own_calls(hooked):
    group, blocks = hooked
    blocks.listening = False
    group.call(PreHookArgs(HookOpName.ALLREDUCE, [ONE]), 1)
    assert blocks.reported == []
    blocks.listening = True
    marks = CollectiveMarks(group, blocks.listens, blocks.labelled_block)
    with marks.around("all_reduce", [ONE], reduce_op="SUM"):
        group.call(PreHookArgs(HookOpName.ALLREDUCE, [ONE]), 2)
    assert [each for each in blocks.reported if isinstance(each, str)] == ["end of all_reduce"]
    assert annotated._open.own == 0


def test_groups_without_hooks_annotate_no_plain_calls():
    group = SimpleNamespace(group_name="0")
    assert annotate_plain_calls(CollectiveMarks(group, bool, Blocks().labelled_block)) is None


def test_init_takes_the_hooks_where_something_listens(monkeypatch):
    gpu = pg.backend("cpu")
    stopped = []
    monkeypatch.setattr(
        annotated, "annotate_plain_calls", lambda marks: lambda: stopped.append(marks)
    )
    with gpu.comm.init(rank=0, world_size=1):
        pass
    assert stopped == [], "hooks cost time where nothing listens"
    listening = SimpleNamespace(listens=lambda: True, labelled_block=gpu.labelled_block)
    with replace(gpu.comm, _gpu=listening).init(rank=0, world_size=1):
        assert stopped == []
    assert len(stopped) == 1
