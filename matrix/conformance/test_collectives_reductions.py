"""Collectives: sums that repeat, cancel or are of one rank, and what libraries do as they like.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

import itertools
import math

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.closeness import ROUNDOFF, beyond
from portagpu.suites.conformance.ranks import (
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _all_reduce(rank, values, op="SUM"):
    import torch.distributed as dist

    def call():
        value = rank_tensor(rank, values[rank.rank])
        dist.all_reduce(value, op=getattr(dist.ReduceOp, op))
        return json_values(value)

    return value_or_refusal(call)


@case(
    "collectives/all-reduce-alone",
    spec="all_reduce of one rank leaves its values as they are.",
    capability=COLLECTIVES,
    params={"op": ("SUM", "AVG", "MAX", "MIN", "PRODUCT")},
)
def test_all_reduce_alone(world, op):
    found = world(1, _all_reduce, values=[payload(0)], op=op)
    check_right_or_refused(found, [payload(0)], f"{op} of one rank")


def _sum_over_symmetric_memory(rank):
    import torch
    import torch.distributed as dist

    def call():
        from torch.distributed import _symmetric_memory as symmetric

        name = dist.group.WORLD.group_name
        value = symmetric.empty(1024, device=rank.gpu.device)
        symmetric.rendezvous(value, name)
        value.fill_(rank.rank + 1.0)
        torch.ops.symm_mem.two_shot_all_reduce_(value, "sum", name)
        rank.gpu.synchronize()
        return [float(value.min()), float(value.max())]

    return value_or_refusal(call)


@case(
    "collectives/symmetric-memory",
    spec="A sum in two shots over symmetric memory needs no multicast: it is exact, or refused.",
    capability=COLLECTIVES,
    traps=("C06",),
)
def test_symmetric_memory(world):
    check_right_or_refused(
        world(2, _sum_over_symmetric_memory), [[3.0, 3.0]] * 2, "a sum over symmetric memory"
    )


def _sum_premultiplied(rank):
    import torch.distributed as dist

    def call():
        value = rank_tensor(rank, [float(rank.rank + 1)])
        dist.all_reduce(value, op=dist._make_nccl_premul_sum(2.0))
        return json_values(value)

    return value_or_refusal(call)


@case(
    "collectives/premultiplied-sum",
    spec="PREMUL_SUM multiplies before it sums, or is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_premultiplied_sum(world):
    check_right_or_refused(world(2, _sum_premultiplied), [[6.0]] * 2, "PREMUL_SUM by 2 of 1 and 2")


def _sum_random_numbers(rank, dtype, count, repeat=1):
    """``repeat`` sums of random numbers, which each rank draws with a seed of its own."""
    import torch
    import torch.distributed as dist

    numbers = torch.randn(count, generator=torch.Generator().manual_seed(100 + rank.rank))
    found = []
    for _ in range(repeat):
        value = numbers.to(getattr(torch, dtype), copy=True).to(rank.gpu.device)
        dist.all_reduce(value)
        found.append(json_values(value))
    return found


def _random_inputs(torch, dtype, count, n):
    return [
        torch.randn(count, generator=torch.Generator().manual_seed(100 + rank))
        .to(getattr(torch, dtype))
        .double()
        for rank in range(n)
    ]


BOUND = "(n-1) u sum|x| + u |sum|"


def _beyond(found, inputs, dtype):
    """What sums are off by more than BOUND, or "". ``inputs`` has a row for each rank."""
    exact, magnitude = inputs.sum(0), inputs.abs().sum(0)
    bound = (len(inputs) - 1) * ROUNDOFF[dtype] * magnitude + ROUNDOFF[dtype] * exact.abs()
    return beyond(found, exact, bound * 1.0001)


@case(
    "collectives/sums-repeat",
    spec="The same sum twice is bitwise the same, and near the one in float64.",
    capability=COLLECTIVES,
    outcome=f"bounded: {BOUND}",
    traps=("P18",),
)
def test_sums_repeat(torch, world):
    inputs = torch.stack(_random_inputs(torch, "float32", 3000, 4))
    for rank, (first, *again) in enumerate(
        world(4, _sum_random_numbers, dtype="float32", count=3000, repeat=4)
    ):
        assert all(each == first for each in again), f"rank {rank}: a repeated sum differs"
        wrong = _beyond(first, inputs, "float32")
        assert not wrong, f"rank {rank}: a repeated sum: {wrong}"


@case(
    "collectives/cancellation",
    spec="A sum whose terms cancel is near the exact one in every order of the ranks.",
    capability=COLLECTIVES,
    outcome="bounded: (n-1) u sum|x| + u |sum|, u = 2^-24",
)
def test_cancellation(world):
    # 1e8 + 1001 has no float32, and the bound of 36 is far from the sum
    orders = list(itertools.permutations([1e8, 1001.0, -1e8, 1001.0]))
    values = [[order[rank] for order in orders] for rank in range(4)]
    bound = 3 * ROUNDOFF["float32"] * 200_002_002.0 + ROUNDOFF["float32"] * 2002.0
    for rank, found in enumerate(world(4, _all_reduce, values=values)):
        worst = max(abs(each - 2002.0) for each in found)
        assert worst <= bound, f"rank {rank}: 1e8 + 1001 - 1e8 + 1001 is {worst} off, bound {bound}"


@case(
    "collectives/nan-in-maximum",
    spec="Whether a NaN of one rank survives MAX and MIN depends on library and order.",
    capability=COLLECTIVES,
    outcome="undefined",
    traps=("P20",),
    params={"op": ("MAX", "MIN")},
)
def test_nan_in_maximum(world, op, record):
    values = [[0.0, math.nan], [math.nan, 1.0], [2.0, 2.0]]
    found = world(3, _all_reduce, values=values, op=op)
    record(f"{op} over 0, NaN, 2 gave {found[0][0]}, over NaN, 1, 2 gave {found[0][1]}")


@case(
    "collectives/sums-repeat-at-every-size",
    spec="With torch's deterministic algorithms sums of 4 KiB to 4 MiB repeat bitwise, whichever "
    "algorithm a library takes for the size, and are near those in float64.",
    capability=COLLECTIVES,
    outcome=f"bounded: {BOUND}",
    traps=("C04", "P18"),
    params={"count": (1 << 10, 1 << 14, 1 << 17, 1 << 20)},
)
def test_sums_repeat_at_every_size(world, count):
    # two ranks have one order, which no algorithm changes
    found = world(4, _repeat_sum, count=count, deterministic=True)
    for rank, (differ, wrong) in enumerate(found):
        assert not differ, f"rank {rank}: {differ} of 4 repetitions of {count} sums differ"
        assert not wrong, f"rank {rank}: one of {count} sums: {wrong}"


@case(
    "collectives/sums-repeat-by-default",
    spec="Whether sums of 4 MiB repeat bitwise without deterministic algorithms is the library's "
    "affair: those in a switch (NVLS) need not.",
    capability=COLLECTIVES,
    outcome="undefined",
    default=False,
    traps=("C04",),
)
def test_sums_repeat_by_default(world, record):
    found = [differ for differ, _ in world(4, _repeat_sum, count=1 << 20, deterministic=False)]
    record(f"of 4 repeated sums of 4 MiB {found} differ on the ranks")


def _repeat_sum(rank, count, deterministic):
    """[number of four repetitions that differ from the first sum, what is off in that]."""
    import torch
    import torch.distributed as dist

    # torch keeps NCCL from NVLS in groups that are made with it (ProcessGroupNCCL.cpp; NCCL #1497)
    torch.use_deterministic_algorithms(deterministic)
    group = dist.new_group()
    every = torch.stack(
        [
            torch.randn(count, generator=torch.Generator().manual_seed(100 + each))
            for each in range(rank.world)
        ]
    )
    numbers = every[rank.rank]
    sums = []
    for _ in range(5):
        value = numbers.to(rank.gpu.device, copy=True)
        dist.all_reduce(value, group=group)
        sums.append(value)
    differ = sum(not torch.equal(sums[0], each) for each in sums[1:])
    return [differ, _beyond(sums[0], every.double(), "float32")]


def _count_sums_by_order(rank):
    """How many bfloat16 sums equal [the sum in the order of ranks, the sum rounded once]."""
    import torch
    import torch.distributed as dist

    parts = [
        torch.randn(2000, generator=torch.Generator().manual_seed(100 + each)).bfloat16()
        for each in range(rank.world)
    ]
    fold_left = parts[0]
    for part in parts[1:]:
        fold_left = fold_left + part
    once = torch.stack(parts).double().sum(0).bfloat16()
    value = parts[rank.rank].to(rank.gpu.device)
    dist.all_reduce(value)
    return [int((value.cpu() == each).sum()) for each in (fold_left, once)]


@case(
    "collectives/order-of-a-sum",
    spec="In which order a library adds the ranks, and how often it rounds, is its own affair.",
    capability=COLLECTIVES,
    outcome="undefined",
    default=False,
)
def test_order_of_a_sum(world, record):
    ordered, once = world(4, _count_sums_by_order)[0]
    record(f"of 2000 sums in bfloat16 {ordered} are of the ranks' order, {once} rounded once")


def _count_differing_sums(rank):
    import torch
    import torch.distributed as dist

    numbers = torch.randn(4096, generator=torch.Generator().manual_seed(rank.rank))
    whole = numbers.to(rank.gpu.device, copy=True)
    dist.all_reduce(whole)
    parts = [part.clone() for part in numbers.to(rank.gpu.device).split(1000)]
    for part in parts:
        dist.all_reduce(part)
    return int((whole != torch.cat(parts)).sum())


@case(
    "collectives/fused-or-split",
    spec="Whether one sum of a buffer has the bits of sums of its parts is not specified.",
    capability=COLLECTIVES,
    outcome="undefined",
    default=False,
)
def test_fused_or_split(world, record):
    record(f"{world(4, _count_differing_sums)[0]} of 4096 sums differ when the buffer is split")
