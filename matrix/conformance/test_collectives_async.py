"""Collectives: barriers and asynchronous work.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.ranks import (
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


def _barrier_times(rank):
    import time

    import torch.distributed as dist

    dist.barrier()
    if rank.rank == 1:
        time.sleep(0.15)
    before = time.monotonic()
    dist.barrier()
    return [before, time.monotonic()]


@case(
    "collectives/barrier",
    spec="No rank leaves a barrier before the last one has come to it.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_barrier(world, n):
    times = world(n, _barrier_times)
    last = max(before for before, _ in times)
    for rank, (_, after) in enumerate(times):
        early_ms = (last - after) * 1e3
        assert early_ms <= 0, f"rank {rank} left the barrier {early_ms:.1f} ms before the last came"


def _sum_asynchronously(rank, count):
    import torch.distributed as dist

    values = [rank_tensor(rank, payload(rank.rank + shift)) for shift in range(count)]
    work = [dist.all_reduce(value, async_op=True) for value in values]
    for each in work:
        each.wait()
    rank.gpu.synchronize()
    return [[json_values(value) for value in values], all(each.is_completed() for each in work)]


@case(
    "collectives/asynchronous",
    unaltered=("asynchrony",),
    spec="After wait() the result of an asynchronous collective is there, for many at a time.",
    capability=COLLECTIVES,
    params={"count": (1, 16)},
    smoke=True,
)
def test_asynchronous(world, count):
    sums = [
        [a + b for a, b in zip(payload(shift), payload(shift + 1), strict=True)]
        for shift in range(count)
    ]
    check_each_rank(
        world(2, _sum_asynchronously, count=count), [[sums, True]] * 2, "asynchronous sums"
    )


def _sum_with_a_late_rank(rank, size):
    import time

    import torch
    import torch.distributed as dist

    value = torch.full((size,), 1.0, device=rank.gpu.device)
    if rank.rank == 1:
        time.sleep(0.1)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    return [float(value[0]), float(value[-1]), float(value.min()), float(value.max())]


@case(
    "collectives/wait-waits",
    unaltered=("asynchrony",),
    spec="wait() does not return before a rank that comes late has taken part.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_wait_waits(world):
    check_each_rank(
        world(2, _sum_with_a_late_rank, size=1 << 20), [[2.0] * 4] * 2, "a sum after wait()"
    )


def _gather_with_freed_input(rank):
    import gc

    import torch
    import torch.distributed as dist

    whole = torch.zeros(rank.world * 1000, device=rank.gpu.device)
    mine = torch.full((1000,), rank.rank + 1.0, device=rank.gpu.device)
    work = dist.all_gather_into_tensor(whole, mine, async_op=True)
    del mine
    gc.collect()
    junk = [torch.full((1000,), 99.0, device=rank.gpu.device) for _ in range(10)]
    work.wait()
    return [float(whole[:1000].min()), float(whole[-1000:].max()), len(junk)]


@case(
    "collectives/input-freed-early",
    unaltered=("asynchrony",),
    spec="The input of an asynchronous collective may be given up before it is done.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_input_freed_early(world):
    check_each_rank(
        world(2, _gather_with_freed_input), [[1.0, 2.0, 10]] * 2, "a gather whose input is gone"
    )


def _sum_between_products(rank):
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    for _ in range(5):
        value = value * 2
        dist.all_reduce(value)
        value = value / 2
    return json_values(value)


@case(
    "collectives/work-around-collectives",
    unaltered=("asynchrony",),
    spec="Collectives and the work before and after them keep their order.",
    capability=COLLECTIVES,
)
def test_work_around_collectives(world):
    # the first sum is the total; each of the four others doubles it
    expected = [16.0 * value for value in total(2)]
    check_each_rank(
        world(2, _sum_between_products), [expected] * 2, "five sums with work between them"
    )


def _sum_on_side_stream(rank):
    import torch
    import torch.distributed as dist

    gpu = rank.gpu
    producer, carrier, consumer = gpu.Stream(), gpu.Stream(), gpu.Stream()
    value = torch.zeros(1 << 20, device=gpu.device)
    gpu.synchronize()
    with gpu.stream(producer):
        for _ in range(20):
            value += rank.rank + 1.0
    carrier.wait_stream(producer)
    with gpu.stream(carrier):
        dist.all_reduce(value, async_op=True).wait()
    consumer.wait_stream(carrier)
    with gpu.stream(consumer):
        result = value * 2
    consumer.synchronize()
    return [float(result.min()), float(result.max())]


@case(
    "collectives/side-streams",
    unaltered=("asynchrony",),
    spec="A sum on one stream of what another made is there for a third, in the order of waits.",
    capability=(COLLECTIVES, Capability.STREAMS),
    covers=("Backend.Stream", "Backend.stream"),
    traps=("C08", "G01"),
)
def test_side_streams(gpu, world):
    gpu.Stream()
    check_each_rank(
        world(2, _sum_on_side_stream), [[120.0, 120.0]] * 2, "twice the sum of 20 and 40"
    )


def _is_done_after_wait(rank):
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(torch.ones(1 << 20, device=rank.gpu.device), async_op=True)
    work.wait()
    done = work.is_completed()
    rank.gpu.synchronize()
    return done


@case(
    "collectives/done-after-wait",
    unaltered=("asynchrony",),
    spec="Whether work is done on the device when wait() returns, or only ordered, is not said.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_done_after_wait(world, record):
    record(f"right after wait() the work is done on each rank: {world(2, _is_done_after_wait)}")


def _sum_coalesced(rank):
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    def call():
        values = [rank_tensor(rank, payload(rank.rank + shift)) for shift in range(4)]
        with _coalescing_manager(device=rank.gpu.device):
            for value in values:
                dist.all_reduce(value)
        rank.gpu.synchronize()
        return [json_values(value) for value in values]

    return value_or_refusal(call)


@case(
    "collectives/coalesced",
    spec="Sums that are started together as one are those that they are alone, or are refused.",
    capability=COLLECTIVES,
)
def test_coalesced(world):
    sums = [
        [a + b for a, b in zip(payload(shift), payload(shift + 1), strict=True)]
        for shift in range(4)
    ]
    check_right_or_refused(world(2, _sum_coalesced), [sums] * 2, "coalesced sums")
