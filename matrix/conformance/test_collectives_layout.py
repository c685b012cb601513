"""Collectives: sizes, shapes, strides and offsets of what is reduced.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.contract import Capability
from portagpu.suite import NotHere, case
from portagpu.suite.ranks import (
    SEVERAL,
    check_each_rank,
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    total,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _sizes_with_wrong_sums(rank, sizes):
    import torch.distributed as dist

    wrong = []
    for size in sizes:
        value = rank_tensor(rank, payload(rank.rank, size))
        dist.all_reduce(value)
        if json_values(value) != total(rank.world, size):
            wrong.append(size)
    return wrong


@case(
    "collectives/every-size",
    spec="all_reduce is exact for sizes below, at and above the number of ranks, and for odd ones.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_every_size(world, n):
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 1023, 65537]
    for rank, wrong in enumerate(world(n, _sizes_with_wrong_sums, sizes=sizes)):
        assert not wrong, f"rank {rank}: the sums of {wrong} elements are wrong"


def _run_without_elements(rank, name):
    import torch
    import torch.distributed as dist

    nothing = torch.empty(0, device=rank.gpu.device)
    if name == "all-reduce":
        dist.all_reduce(nothing)
    elif name == "broadcast":
        dist.broadcast(nothing, 0)
    elif name == "all-gather":
        nothing = torch.empty(0, device=rank.gpu.device)
        dist.all_gather_into_tensor(nothing, torch.empty(0, device=rank.gpu.device))
    else:
        dist.reduce_scatter_tensor(nothing, torch.empty(0, device=rank.gpu.device))
    after = torch.ones(1, device=rank.gpu.device)
    dist.all_reduce(after)
    return [nothing.numel(), float(after)]


@case(
    "collectives/nothing-at-all",
    spec="A collective over no element does nothing, and the next one works.",
    capability=COLLECTIVES,
    params={"name": ("all-reduce", "broadcast", "all-gather", "reduce-scatter")},
)
def test_nothing_at_all(world, name):
    check_each_rank(
        world(2, _run_without_elements, name=name), [[0, 2.0]] * 2, f"{name} of nothing"
    )


def _sum_transposed(rank):
    import torch.distributed as dist

    def call():
        value = rank_tensor(rank, payload(rank.rank)).reshape(3, 4).t()
        dist.all_reduce(value)
        return json_values(value.t().reshape(-1))

    return value_or_refusal(call)


@case(
    "collectives/strided-all-reduce",
    spec="all_reduce of a transposed tensor is right in its own order, or refused.",
    capability=COLLECTIVES,
)
def test_strided_all_reduce(world):
    check_right_or_refused(world(2, _sum_transposed), [total(2)] * 2, "a sum of transposed tensors")


def _gather_transposed(rank):
    import torch
    import torch.distributed as dist

    def call():
        mine = rank_tensor(rank, payload(rank.rank)).reshape(3, 4).t()
        parts = [torch.zeros(3, 4, device=rank.gpu.device).t() for _ in range(rank.world)]
        dist.all_gather(parts, mine)
        return [json_values(part.t().reshape(-1)) for part in parts]

    return value_or_refusal(call)


@case(
    "collectives/strided-all-gather",
    spec="all_gather of transposed tensors keeps every element in its place, or is refused.",
    capability=COLLECTIVES,
)
def test_strided_all_gather(world):
    expected = [[payload(0), payload(1)]] * 2
    check_right_or_refused(world(2, _gather_transposed), expected, "gathered transposed tensors")


def _sum_slice(rank, offset):
    import torch
    import torch.distributed as dist

    base = torch.full((32,), 77.0, device=rank.gpu.device)
    base[offset : offset + 12] = rank_tensor(rank, payload(rank.rank))
    dist.all_reduce(base[offset : offset + 12])
    return json_values(base)


@case(
    "collectives/misaligned-slices",
    spec="all_reduce of a slice at an odd offset is exact and leaves its neighbours as they were.",
    capability=COLLECTIVES,
    params={"offset": (1, 3, 7)},
)
def test_misaligned_slices(world, offset):
    expected = [77.0] * offset + total(2) + [77.0] * (20 - offset)
    check_each_rank(world(2, _sum_slice, offset=offset), [expected] * 2, f"a slice at {offset}")


def _sum_large_tensor(rank, count):
    import torch
    import torch.distributed as dist

    value = torch.full((count,), float(rank.rank + 1), device=rank.gpu.device)
    dist.all_reduce(value)
    return [float(value.min()), float(value.max())]


@case(
    "collectives/megabytes",
    spec="all_reduce of 16 MiB has the sum in every element.",
    capability=COLLECTIVES,
)
def test_megabytes(world):
    check_each_rank(
        world(2, _sum_large_tensor, count=1 << 22), [[3.0, 3.0]] * 2, "the least and largest sum"
    )


def _sum_shapes(rank):
    import torch
    import torch.distributed as dist

    found = []
    for shape in ((), (1,), (2, 3, 4), (1, 1, 5)):
        value = torch.ones(shape, device=rank.gpu.device)
        dist.all_reduce(value)
        found.append([list(value.shape), float(value.sum())])
    return found


@case(
    "collectives/shapes-are-kept",
    spec="all_reduce keeps the shape of its tensor, a scalar's too.",
    capability=COLLECTIVES,
)
def test_shapes_are_kept(world):
    expected = [[[], 2.0], [[1], 2.0], [[2, 3, 4], 48.0], [[1, 1, 5], 10.0]]
    check_each_rank(world(2, _sum_shapes), [expected] * 2, "shapes and sums")


GIB = 1 << 30
HUGE = (1 << 32) + 16


def _broadcast_huge_tensor(rank):
    """Broadcast from rank 1; the bytes at both ends and at both sides of 2^31 and 2^32."""
    import torch
    import torch.distributed as dist

    value = torch.empty(HUGE, dtype=torch.uint8, device=rank.gpu.device)
    marked = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, HUGE - 1]
    if rank.rank == 1:
        value.fill_(1)
        marks = torch.arange(11, 17, dtype=torch.uint8)
        value[marked] = marks.to(rank.gpu.device)
    dist.broadcast(value, 1)
    return value[marked].tolist() + value[[12345, (1 << 31) + 7, HUGE - 2]].tolist()


@case(
    "collectives/huge-buffer",
    spec="A broadcast of more than 2^31 elements and more than 4 GiB reaches each of them.",
    capability=COLLECTIVES,
    timeout_s=180.0,
    does_not_show="every element: it looks at both ends and at both sides of 2^31 and 2^32",
)
def test_huge_buffer(gpu, world):
    needed = (2 if gpu.plugin.shared else 1) * HUGE + 4 * GIB
    free = gpu.mem_get_info()[0]
    if free < needed:
        raise NotHere(f"needs {needed / GIB:.0f} GiB of free memory, and {free / GIB:.0f} are free")
    expected = [11, 12, 13, 14, 15, 16, 1, 1, 1]
    check_each_rank(world(2, _broadcast_huge_tensor), [expected] * 2, f"some of {HUGE} bytes")
