"""Collectives: all_gather and reduce_scatter, whole, in parts and in place.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.contract import Capability
from portagpu.suite import case
from portagpu.suite.ranks import (
    SEVERAL,
    WORLDS,
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


def _all_gather(rank, dtype="float32"):
    import torch
    import torch.distributed as dist

    def call():
        mine = rank_tensor(rank, payload(rank.rank), dtype)
        parts = [torch.zeros_like(mine) for _ in range(rank.world)]
        dist.all_gather(parts, mine)
        return [json_values(part) for part in parts]

    return value_or_refusal(call)


@case(
    "collectives/all-gather",
    spec="all_gather gives every rank every rank's tensor, in the order of ranks.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_all_gather(world, n):
    expected = [payload(rank) for rank in range(n)]
    check_each_rank(world(n, _all_gather), [expected] * n, "all_gather")


@case(
    "collectives/all-gather-dtypes",
    spec="all_gather moves a dtype bit by bit, or refuses it.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={
        "dtype": (
            "bfloat16",
            "float16",
            "float64",
            "int64",
            "int16",
            "int8",
            "float8_e4m3fn",
            "complex64",
        )
    },
)
def test_all_gather_dtypes(world, dtype):
    expected = [payload(0), payload(1)]
    check_right_or_refused(
        world(2, _all_gather, dtype=dtype), [expected] * 2, f"all_gather of {dtype}"
    )


def _all_gather_into(rank, aliased=False):
    import torch
    import torch.distributed as dist

    whole = torch.zeros(12 * rank.world, device=rank.gpu.device)
    mine = rank_tensor(rank, payload(rank.rank))
    if aliased:
        part = whole[12 * rank.rank : 12 * (rank.rank + 1)]
        part.copy_(mine)
        mine = part
    dist.all_gather_into_tensor(whole, mine)
    return json_values(whole)


@case(
    "collectives/all-gather-into-tensor",
    spec="all_gather_into_tensor lays the ranks' tensors one after the other.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_all_gather_into_tensor(world, n):
    expected = [value for rank in range(n) for value in payload(rank)]
    check_each_rank(world(n, _all_gather_into), [expected] * n, "all_gather_into_tensor")


@case(
    "collectives/all-gather-in-place",
    spec="all_gather_into_tensor works on an input that is its own part of the output.",
    capability=COLLECTIVES,
)
def test_all_gather_in_place(world):
    expected = [value for rank in range(4) for value in payload(rank)]
    check_each_rank(world(4, _all_gather_into, aliased=True), [expected] * 4, "all_gather in place")


def _all_gather_uneven(rank):
    import torch
    import torch.distributed as dist

    def call():
        parts = [torch.zeros(each + 1, device=rank.gpu.device) for each in range(rank.world)]
        dist.all_gather(
            parts, torch.full((rank.rank + 1,), 1.0 + rank.rank, device=rank.gpu.device)
        )
        return [json_values(part) for part in parts]

    return value_or_refusal(call)


@case(
    "collectives/uneven-all-gather",
    spec="all_gather of tensors of different sizes is right, or refused on every rank.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_uneven_all_gather(world):
    expected = [[[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]]] * 3
    check_right_or_refused(world(3, _all_gather_uneven), expected, "an uneven all_gather")


def _all_gather_into_wrong_size(rank):
    import torch
    import torch.distributed as dist

    def call():
        whole = torch.zeros(rank.world + 1, device=rank.gpu.device)
        dist.all_gather_into_tensor(whole, torch.zeros(1, device=rank.gpu.device))
        return "accepted"

    return value_or_refusal(call)


@case(
    "collectives/wrong-output-size",
    spec="An output that does not fit the number of ranks is refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_wrong_output_size(world):
    check_all_refused(world(2, _all_gather_into_wrong_size), "three places for two ranks")


def _reduce_scatter(rank, op="SUM", dtype="float32"):
    import torch
    import torch.distributed as dist

    def call():
        whole = rank_tensor(rank, payload(rank.rank, 3 * rank.world), dtype)
        mine = torch.zeros(3, dtype=whole.dtype, device=rank.gpu.device)
        dist.reduce_scatter_tensor(mine, whole, op=getattr(dist.ReduceOp, op))
        return json_values(mine)

    return value_or_refusal(call)


def _expected_shares(n, op="SUM"):
    whole = fold(op, columns(n, 3 * n))
    return [whole[3 * rank : 3 * rank + 3] for rank in range(n)]


@case(
    "collectives/reduce-scatter",
    spec="reduce_scatter_tensor gives rank r the r-th part of the sum.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_reduce_scatter(world, n):
    check_each_rank(world(n, _reduce_scatter), _expected_shares(n), "reduce_scatter_tensor")


@case(
    "collectives/reduce-scatter-op",
    spec="reduce_scatter_tensor does every claimed reduce op exactly.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("AVG", "PRODUCT", "MIN", "MAX")},
)
def test_reduce_scatter_op(gpu, world, op):
    found = world(2, _reduce_scatter, op=op)
    judge = check_each_rank if op in gpu.comm.reduce_ops else check_right_or_refused
    judge(found, _expected_shares(2, op), f"reduce_scatter {op}")


@case(
    "collectives/reduce-scatter-dtypes",
    spec="reduce_scatter_tensor sums small whole numbers exactly in 16-bit formats.",
    capability=COLLECTIVES,
    params={"dtype": ("bfloat16", "float16")},
)
def test_reduce_scatter_dtypes(world, dtype):
    check_each_rank(
        world(2, _reduce_scatter, dtype=dtype), _expected_shares(2), f"reduce_scatter of {dtype}"
    )


def _reduce_scatter_list(rank, uneven=False):
    import torch
    import torch.distributed as dist

    sizes = [each + 1 if uneven else 2 for each in range(rank.world)]

    def call():
        parts = [
            torch.full((size,), rank.rank + 1.0, device=rank.gpu.device) * (place + 1)
            for place, size in enumerate(sizes)
        ]
        mine = torch.zeros(sizes[rank.rank], device=rank.gpu.device)
        dist.reduce_scatter(mine, parts)
        return json_values(mine)

    return value_or_refusal(call)


@case(
    "collectives/reduce-scatter-list",
    spec="reduce_scatter of a list gives rank r the sum of the r-th tensors.",
    capability=COLLECTIVES,
)
def test_reduce_scatter_list(world):
    expected = [[6.0 * (rank + 1)] * 2 for rank in range(3)]
    check_each_rank(world(3, _reduce_scatter_list), expected, "reduce_scatter of a list")


@case(
    "collectives/uneven-reduce-scatter",
    spec="reduce_scatter of tensors of different sizes is right, or refused.",
    capability=COLLECTIVES,
)
def test_uneven_reduce_scatter(world):
    expected = [[6.0 * (rank + 1)] * (rank + 1) for rank in range(3)]
    check_right_or_refused(
        world(3, _reduce_scatter_list, uneven=True), expected, "an uneven scatter"
    )


def _reduce_scatter_in_place(rank):
    import torch.distributed as dist

    def call():
        whole = rank_tensor(rank, payload(rank.rank, 3 * rank.world))
        mine = whole[3 * rank.rank : 3 * rank.rank + 3]
        dist.reduce_scatter_tensor(mine, whole)
        return json_values(mine)

    return value_or_refusal(call)


@case(
    "collectives/reduce-scatter-in-place",
    spec="reduce_scatter_tensor into its own part of the input is right, or refused.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_reduce_scatter_in_place(world, n):
    check_right_or_refused(
        world(n, _reduce_scatter_in_place), _expected_shares(n), "reduce_scatter in place"
    )


def _sum_both_ways(rank):
    import torch
    import torch.distributed as dist

    whole = rank_tensor(rank, payload(rank.rank, 4 * rank.world))
    part = torch.zeros(4, device=rank.gpu.device)
    dist.reduce_scatter_tensor(part, whole)
    again = torch.zeros_like(whole)
    dist.all_gather_into_tensor(again, part)
    dist.all_reduce(whole)
    return [json_values(again), json_values(whole)]


@case(
    "collectives/composition",
    spec="reduce_scatter followed by all_gather is all_reduce, on whole numbers.",
    capability=COLLECTIVES,
    smoke=True,
)
def test_composition(world):
    expected = [total(4, 16), total(4, 16)]
    check_each_rank(world(4, _sum_both_ways), [expected] * 4, "both ways to a sum")
