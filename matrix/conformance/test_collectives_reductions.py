"""Collectives: sums and other reductions over all ranks.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

import itertools
import math

from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.dtypes import FLOATS, ROUNDOFF
from portagpu.suite.near import beyond
from portagpu.suite.ranks import (
    SEVERAL,
    check_all_refused,
    check_each_rank,
    check_right_or_refused,
    columns,
    fold,
    json_values,
    payload,
    rank_tensor,
    total,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES
SIGNED = ("int64", "int32", "int16", "int8")
UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32}
FP8 = ("float8_e4m3fn", "float8_e4m3fnuz")
EVERY = (*FLOATS, *SIGNED, *UNSIGNED, "complex64", *FP8)


def _all_reduce(rank, dtype, op="SUM", values=None):
    import torch.distributed as dist

    if values is None:
        # whole numbers have a whole average where each is that many times as large
        times = rank.world if op == "AVG" else 1
        mine = [times * value for value in payload(rank.rank)]
    else:
        mine = values[rank.rank]

    def call():
        value = rank_tensor(rank, mine, dtype)
        dist.all_reduce(value, op=getattr(dist.ReduceOp, op))
        return json_values(value)

    return value_or_refusal(call)


def _expected_values(op, n):
    """The values that ``_all_reduce`` returns for the default payload."""
    return total(n) if op == "AVG" else fold(op, columns(n))


@case(
    "collectives/all-reduce-sum",
    spec="all_reduce sums whole numbers exactly, or refuses the dtype.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={"dtype": EVERY, "n": SEVERAL},
    smoke=True,
)
def test_all_reduce_sum(world, dtype, n):
    expected = total(n)
    if dtype in UNSIGNED:
        expected = [value % 2 ** UNSIGNED[dtype] for value in expected]
    found = world(n, _all_reduce, dtype=dtype)
    check_right_or_refused(found, [expected] * n, f"a sum of {dtype}")


@case(
    "collectives/claimed-dtypes-sum",
    spec="float32, float64, float16, bfloat16 and int64 are never refused.",
    capability=COLLECTIVES,
    params={"dtype": (*FLOATS, "int64")},
)
def test_claimed_dtypes_sum(world, dtype):
    check_each_rank(world(2, _all_reduce, dtype=dtype), [total(2)] * 2, f"a sum of {dtype}")


@case(
    "collectives/all-reduce-alone",
    spec="all_reduce of one rank leaves its values as they are.",
    capability=COLLECTIVES,
    params={"op": ("SUM", "AVG", "MAX", "MIN", "PRODUCT")},
)
def test_all_reduce_alone(world, op):
    found = world(1, _all_reduce, dtype="float32", op=op)
    check_right_or_refused(found, [payload(0)], f"{op} of one rank")


@case(
    "collectives/all-reduce-op",
    spec="all_reduce does a claimed op exactly; one that is not claimed is right or refused.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("SUM", "AVG", "PRODUCT", "MIN", "MAX"), "n": SEVERAL},
)
def test_all_reduce_op(gpu, world, op, n):
    expected = [_expected_values(op, n)] * n
    found = world(n, _all_reduce, dtype="float32", op=op)
    judge = check_each_rank if op in gpu.comm.reduce_ops else check_right_or_refused
    judge(found, expected, f"all_reduce {op}")


@case(
    "collectives/all-reduce-op-bfloat16",
    spec="all_reduce does a claimed reduce op exactly on small whole numbers in bfloat16.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("SUM", "AVG", "MIN", "MAX")},
)
def test_all_reduce_op_bfloat16(gpu, world, op):
    expected = [_expected_values(op, 2)] * 2
    found = world(2, _all_reduce, dtype="bfloat16", op=op)
    judge = check_each_rank if op in gpu.comm.reduce_ops else check_right_or_refused
    judge(found, expected, f"all_reduce {op} in bfloat16")


@case(
    "collectives/bitwise-ops",
    spec="A bitwise reduce op on integers is exact, or refused.",
    capability=COLLECTIVES,
    params={"op": ("BAND", "BOR", "BXOR")},
)
def test_bitwise_ops(world, op):
    found = world(4, _all_reduce, dtype="int32", op=op)
    check_right_or_refused(found, [fold(op, columns(4))] * 4, f"all_reduce {op} on integers")


@case(
    "collectives/bitwise-ops-on-floats",
    spec="A bitwise reduce op on floating-point numbers is refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
    params={"op": ("BAND", "BOR", "BXOR")},
)
def test_bitwise_ops_on_floats(world, op):
    check_all_refused(world(2, _all_reduce, dtype="float32", op=op), f"{op} of floats")


@case(
    "collectives/average-of-a-constant",
    spec="AVG of the same number on every rank is that number, or is refused for the dtype.",
    capability=COLLECTIVES,
    traps=("C01", "C02"),
    params={"dtype": (*FLOATS, *FP8), "n": (2, 4)},
)
def test_average_of_a_constant(world, dtype, n):
    same = [1.0, -2.0, 0.5, 3.5]
    found = world(n, _all_reduce, dtype=dtype, op="AVG", values=[same] * n)
    check_right_or_refused(found, [same] * n, f"AVG of {n} times the same {dtype}")


@case(
    "collectives/average-of-integers",
    spec="AVG of integers, whose average is whole, is exact or refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
    traps=("C02",),
)
def test_average_of_integers(world):
    values = [[2, -4, 6], [4, -8, 2]]
    found = world(2, _all_reduce, dtype="int32", op="AVG", values=values)
    check_right_or_refused(found, [[3, -6, 4]] * 2, "AVG of integers")


def _reduce_crafted_values(rank, dtype, op):
    import torch.distributed as dist

    value = rank_tensor(rank, crafted_values(op, rank.world)[rank.rank], dtype)
    dist.all_reduce(value, op=getattr(dist.ReduceOp, op))
    return json_values(value)


def crafted_values(op, n):
    """Values on n ranks whose result is exact in every order and in every floating-point format.

    For a sum, all ranks have whole numbers times the same power of two at a place. For a product,
    one rank has a number of seven bits at a place, and the others have signed powers of two.
    """
    if op == "SUM":
        return [
            [value * 2.0 ** (place - 6) for place, value in enumerate(payload(rank))]
            for rank in range(n)
        ]
    return [
        [
            1.0 + (5 * place + 1) / 64 if place % n == rank else (-1) ** place * 2.0 ** (rank % 3)
            for place in range(12)
        ]
        for rank in range(n)
    ]


@case(
    "collectives/crafted-values",
    spec="SUM and PRODUCT are bitwise exact where no order of the ranks rounds.",
    capability=COLLECTIVES,
    params={"op": ("SUM", "PRODUCT"), "dtype": FLOATS, "n": SEVERAL},
)
def test_crafted_values(world, op, dtype, n):
    expected = fold(op, zip(*crafted_values(op, n), strict=True))
    found = world(n, _reduce_crafted_values, dtype=dtype, op=op)
    check_each_rank(found, [expected] * n, f"{op} of crafted values in {dtype}")


@case(
    "collectives/booleans",
    spec="The greatest of booleans says whether any is true, or is refused.",
    capability=COLLECTIVES,
)
def test_booleans(world):
    values = [[False, True, False, True], [False, False, True, True]]
    found = world(2, _all_reduce, dtype="bool", op="MAX", values=values)
    check_right_or_refused(found, [[0.0, 1.0, 1.0, 1.0]] * 2, "MAX of booleans")


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


@case(
    "collectives/integers-wrap",
    spec="A sum of int8 wraps around as its arithmetic does.",
    capability=COLLECTIVES,
)
def test_integers_wrap(world):
    values = [[100, -100, 127]] * 4
    found = world(4, _all_reduce, dtype="int8", values=values)
    check_right_or_refused(found, [[-112, 112, -4]] * 4, "four times 100, -100 and 127 in int8")


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
    "collectives/random-sum-is-bounded",
    spec="A sum of random numbers is near the sum in float64.",
    capability=COLLECTIVES,
    outcome=f"bounded: {BOUND}",
    params={"dtype": FLOATS, "n": SEVERAL},
)
def test_random_sum_is_bounded(torch, world, dtype, n):
    count = 2000
    inputs = torch.stack(_random_inputs(torch, dtype, count, n))
    for rank, (found,) in enumerate(world(n, _sum_random_numbers, dtype=dtype, count=count)):
        wrong = _beyond(found, inputs, dtype)
        assert not wrong, f"rank {rank}: the sum of {dtype}: {wrong}"


@case(
    "collectives/ranks-agree",
    spec="All ranks get bitwise the same sum of random numbers, which is near the one in float64.",
    capability=COLLECTIVES,
    outcome=f"bounded: {BOUND}",
    params={"dtype": ("float32", "bfloat16")},
)
def test_ranks_agree(torch, world, dtype):
    found = world(4, _sum_random_numbers, dtype=dtype, count=3000)
    for rank, mine in enumerate(found):
        wrong = sum(a != b for a, b in zip(mine[0], found[0][0], strict=True))
        assert wrong == 0, f"rank {rank} differs from rank 0 in {wrong} of 3000 sums of {dtype}"
    inputs = torch.stack(_random_inputs(torch, dtype, 3000, 4))
    wrong = _beyond(found[0][0], inputs, dtype)
    assert not wrong, f"the sum of {dtype} that all have: {wrong}"


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
    for rank, found in enumerate(world(4, _all_reduce, dtype="float32", values=values)):
        worst = max(abs(each - 2002.0) for each in found)
        assert worst <= bound, f"rank {rank}: 1e8 + 1001 - 1e8 + 1001 is {worst} off, bound {bound}"


@case(
    "collectives/special-values",
    spec="A sum follows IEEE 754: infinities, minus zero and subnormal numbers.",
    capability=COLLECTIVES,
    traps=("P13",),
)
def test_special_values(world):
    tiny = 2.0**-149
    values = [[math.inf, math.inf, -0.0, tiny, math.nan], [1.0, -math.inf, -0.0, 2 * tiny, 1.0]]
    for rank, found in enumerate(world(2, _all_reduce, dtype="float32", values=values)):
        assert found[0] == math.inf, f"rank {rank}: inf + 1 is {found[0]}"
        assert math.isnan(found[1]), f"rank {rank}: inf - inf is {found[1]}"
        assert math.copysign(1, found[2]) == -1.0, f"rank {rank}: -0.0 + -0.0 is {found[2]}"
        assert found[3] == 3 * tiny, f"rank {rank}: subnormal numbers add up to {found[3]}"
        assert math.isnan(found[4]), f"rank {rank}: NaN + 1 is {found[4]}"


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
    found = world(3, _all_reduce, dtype="float32", op=op, values=values)
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
)
def test_fused_or_split(world, record):
    record(f"{world(4, _count_differing_sums)[0]} of 4096 sums differ when the buffer is split")
