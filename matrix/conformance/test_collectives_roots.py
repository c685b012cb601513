"""Collectives: broadcast, reduce, scatter and gather, and Python objects.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.contract import Capability
from portagpu.suite import case, refused
from portagpu.suite.ranks import (
    check_each_rank,
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    total,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _broadcast(rank, root, dtype="float32"):
    import torch.distributed as dist

    def call():
        value = rank_tensor(rank, payload(rank.rank), dtype)
        dist.broadcast(value, root)
        return json_values(value)

    return value_or_refusal(call)


@case(
    "collectives/broadcast",
    spec="broadcast gives every rank the root's tensor.",
    capability=COLLECTIVES,
    params={"root": (0, 1, 3)},
    smoke=True,
)
def test_broadcast(world, root):
    check_each_rank(
        world(4, _broadcast, root=root), [payload(root)] * 4, f"a broadcast from {root}"
    )


@case(
    "collectives/broadcast-dtypes",
    spec="broadcast moves a dtype bit by bit, or refuses it.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={"dtype": ("bfloat16", "float64", "int64", "int16", "float8_e4m3fn")},
)
def test_broadcast_dtypes(world, dtype):
    found = world(2, _broadcast, root=1, dtype=dtype)
    check_right_or_refused(found, [payload(1)] * 2, f"a broadcast of {dtype}")


@case(
    "collectives/broadcast-alone",
    spec="broadcast in a world of one rank changes nothing.",
    capability=COLLECTIVES,
)
def test_broadcast_alone(world):
    check_each_rank(world(1, _broadcast, root=0), [payload(0)], "a broadcast to itself")


def _reduce(rank, root):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    dist.reduce(value, root)
    return json_values(value)


@case(
    "collectives/reduce",
    spec="reduce gives the root the sum.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_reduce(world, root):
    found = world(4, _reduce, root=root)[root]
    assert found == total(4), f"rank {root} got {found}, not {total(4)}"


@case(
    "collectives/reduce-elsewhere",
    spec="What reduce leaves in the buffers of the other ranks is not specified.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_reduce_elsewhere(world, record):
    found = world(3, _reduce, root=0)
    kept = [rank for rank in (1, 2) if found[rank] == payload(rank)]
    record(f"ranks that kept their own values: {kept or 'none'}")


def _scatter(rank, root):
    import torch
    import torch.distributed as dist

    parts = None
    if rank.rank == root:
        parts = [rank_tensor(rank, payload(each)) for each in range(rank.world)]
    mine = torch.zeros(12, device=rank.gpu.device)
    dist.scatter(mine, parts, src=root)
    return json_values(mine)


@case(
    "collectives/scatter",
    spec="scatter gives rank r the r-th tensor of the root.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_scatter(world, root):
    expected = [payload(rank) for rank in range(3)]
    check_each_rank(world(3, _scatter, root=root), expected, f"a scatter from {root}")


def _gather(rank, root):
    import torch
    import torch.distributed as dist

    parts = None
    if rank.rank == root:
        parts = [torch.zeros(12, device=rank.gpu.device) for _ in range(rank.world)]
    dist.gather(rank_tensor(rank, payload(rank.rank)), parts, dst=root)
    return None if parts is None else [json_values(part) for part in parts]


@case(
    "collectives/gather",
    spec="gather gives the root every rank's tensor, in the order of ranks.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_gather(world, root):
    expected = [None] * 3
    expected[root] = [payload(rank) for rank in range(3)]
    check_each_rank(world(3, _gather, root=root), expected, f"a gather at {root}")


def _scatter_list_elsewhere(rank):
    import torch
    import torch.distributed as dist

    if rank.rank == 0:
        return "root"
    part = torch.zeros(1, device=rank.gpu.device)
    error = refused(
        lambda: dist.scatter(part, [part, part], src=0), ValueError, "a list on a rank without root"
    )
    return type(error).__name__


@case(
    "collectives/scatter-list-elsewhere",
    spec="A list of tensors to scatter on a rank that is not the root is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_scatter_list_elsewhere(world):
    check_each_rank(world(2, _scatter_list_elsewhere), ["root", "ValueError"], "a list elsewhere")


def _exchange_objects(rank):
    import torch.distributed as dist

    everyone = [None] * rank.world
    dist.all_gather_object(everyone, {"rank": rank.rank, "text": "ü" * rank.rank})
    told = [{"seed": 7}, [1, 2]] if rank.rank == 1 else [None, None]
    dist.broadcast_object_list(told, 1)
    return [everyone, told]


@case(
    "collectives/objects",
    spec="Python objects are gathered and broadcast as they are.",
    capability=COLLECTIVES,
)
def test_objects(world):
    everyone = [{"rank": rank, "text": "ü" * rank} for rank in range(3)]
    expected = [everyone, [{"seed": 7}, [1, 2]]]
    check_each_rank(world(3, _exchange_objects), [expected] * 3, "gathered and broadcast objects")
