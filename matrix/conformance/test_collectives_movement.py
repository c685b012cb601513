"""Collectives: messages from one rank to another, all_gather and reduce_scatter of different sizes
and of one rank, and large buffers.

Functions whose name begins with an underscore run on every rank; the oracles are worked out here.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import NotHere, case
from portagpu.suites.conformance.ranks import (
    check_each_rank,
    check_right_or_refused,
    json_values,
    payload,
    rank_tensor,
    total,
    value_or_refusal,
)

COLLECTIVES = Capability.COLLECTIVES


def _pass_around_ring(rank, rounds=1):
    import torch
    import torch.distributed as dist

    value = rank_tensor(rank, payload(rank.rank))
    for _ in range(rounds):
        got = torch.zeros_like(value)
        work = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, value, (rank.rank + 1) % rank.world),
                dist.P2POp(dist.irecv, got, (rank.rank - 1) % rank.world),
            ]
        )
        for each in work:
            each.wait()
        value = got
    return json_values(value)


@case(
    "collectives/ring-many-rounds",
    spec="After as many rounds as ranks, a hundred times over, everyone has his own tensor again.",
    capability=COLLECTIVES,
)
def test_ring_many_rounds(world):
    check_each_rank(
        world(2, _pass_around_ring, rounds=200), [payload(0), payload(1)], "after 200 rounds"
    )


def _exchange_both_ways(rank):
    import torch
    import torch.distributed as dist

    other = 1 - rank.rank
    sent = [rank_tensor(rank, [100.0 * rank.rank + each]) for each in range(20)]
    got = [torch.zeros(1, device=rank.gpu.device) for _ in range(20)]
    ops = []
    for mine, theirs in zip(sent, got, strict=True):
        ops.append(dist.P2POp(dist.isend, mine, other))
        ops.append(dist.P2POp(dist.irecv, theirs, other))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return json_values(torch.cat(got))


@case(
    "collectives/messages-keep-order",
    spec="Twenty messages in both directions at once arrive in the order they were sent.",
    capability=COLLECTIVES,
)
def test_messages_keep_order(world):
    expected = [[100.0 * (1 - rank) + each for each in range(20)] for rank in range(2)]
    check_each_rank(world(2, _exchange_both_ways), expected, "twenty messages")


def _receive_from_anyone(rank):
    import torch
    import torch.distributed as dist

    value = rank_tensor(rank, [float(rank.rank)])
    if rank.rank:
        return value_or_refusal(lambda: dist.send(value, 0)) or "sent"
    found = []
    for _ in range(rank.world - 1):
        got = torch.zeros(1, device=rank.gpu.device)
        source = value_or_refusal(lambda got=got: dist.recv(got))
        if isinstance(source, str):
            for other in range(1, rank.world):
                dist.recv(got, other)
            return source
        found.append([source, float(got)])
    return sorted(found)


@case(
    "collectives/receive-from-anyone",
    spec="A receive without a source names the rank that sent what it got, or is refused.",
    capability=COLLECTIVES,
)
def test_receive_from_anyone(world):
    found = world(3, _receive_from_anyone)[0]
    if not isinstance(found, str):
        assert found == [[1, 1.0], [2, 2.0]], f"rank 0 got {found} as source and value"


def _exchange_thousand_messages(rank):
    """Send 500 messages to the right and receive 500 from the left, in one batch."""
    import torch
    import torch.distributed as dist

    right, left = (rank.rank + 1) % rank.world, (rank.rank - 1) % rank.world
    sent = [rank_tensor(rank, [1000.0 * rank.rank + each]) for each in range(500)]
    got = [torch.zeros(1, device=rank.gpu.device) for _ in range(500)]
    sends = [dist.P2POp(dist.isend, value, right) for value in sent]
    receives = [dist.P2POp(dist.irecv, value, left) for value in got]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait()
    return json_values(torch.cat(got))


@case(
    "collectives/thousand-messages",
    spec="A batch of a thousand sends and receives delivers each of them, in order.",
    capability=COLLECTIVES,
    params={"n": (2, 3)},
)
def test_thousand_messages(world, n):
    expected = [[1000.0 * ((rank - 1) % n) + each for each in range(500)] for rank in range(n)]
    check_each_rank(world(n, _exchange_thousand_messages), expected, "500 messages from the left")


def _send_asymmetrically(rank):
    """Rank r sends r messages to each lower rank, and none to the others."""
    import torch
    import torch.distributed as dist

    me, n = rank.rank, rank.world
    ops, got = [], []
    for other in range(n):
        for number in range(max(me, other)):
            if me > other:
                ops.append(dist.P2POp(dist.isend, rank_tensor(rank, [10.0 * me + number]), other))
            elif me < other:
                got.append(torch.zeros(1, device=rank.gpu.device))
                ops.append(dist.P2POp(dist.irecv, got[-1], other))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [float(value) for value in got]


@case(
    "collectives/asymmetric-messages",
    spec="Ranks whose batches have other numbers of sends and receives get what was sent to them.",
    capability=COLLECTIVES,
    params={"n": (2, 3, 4)},
)
def test_asymmetric_messages(world, n):
    expected = [
        [10.0 * other + number for other in range(me + 1, n) for number in range(other)]
        for me in range(n)
    ]
    check_each_rank(world(n, _send_asymmetrically), expected, "messages from higher ranks")


def _receive_by_tag(rank):
    import torch
    import torch.distributed as dist

    if rank.rank == 0:
        work = [dist.isend(rank_tensor(rank, [float(tag)]), 1, tag=tag) for tag in (1, 2)]
        for each in work:
            each.wait()
        return None
    got = {tag: torch.zeros(1, device=rank.gpu.device) for tag in (2, 1)}
    for tag, value in got.items():
        dist.irecv(value, 0, tag=tag).wait()
    return [float(got[1]), float(got[2])]


@case(
    "collectives/tags",
    spec="Whether a receive waits for the message of its tag depends on the library.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_tags(world, record):
    found = world(2, _receive_by_tag)[1]
    record(f"messages of tags 1 and 2, received in reverse, arrived as {found}")


def _sum_beside_pending_receive(rank):
    import torch
    import torch.distributed as dist

    other = dist.new_group()
    got = torch.zeros(4, device=rank.gpu.device)
    receive = dist.irecv(got, 1) if rank.rank == 0 else None
    value = rank_tensor(rank, payload(rank.rank))
    dist.all_reduce(value, group=other)
    summed = json_values(value)
    if receive is None:
        dist.send(rank_tensor(rank, [5.0] * 4), 0)
    else:
        receive.wait()
    return [summed, json_values(got)]


@case(
    "collectives/pending-receive",
    spec="A receive whose message is not sent yet keeps no sum of another group waiting.",
    capability=COLLECTIVES,
    traps=("C09",),
)
def test_pending_receive(world):
    expected = [[total(2), [5.0] * 4], [total(2), [0.0] * 4]]
    check_each_rank(
        world(2, _sum_beside_pending_receive),
        expected,
        "a sum during a pending receive, and what it received",
    )


def _write_to_shared_memory(rank):
    """Rank 1 opens memory of rank 0 by its handle and writes to it; the values both then see."""
    from multiprocessing.reduction import ForkingPickler

    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes

    import portagpu as pg

    def call():
        processes.set_sharing_strategy("file_system")
        handle = [None]
        if rank.rank == 0:
            mine = torch.zeros(16, device=rank.gpu.device)
            handle = [bytes(ForkingPickler.dumps(mine))]
        dist.broadcast_object_list(handle, 0)
        if rank.rank == 1:
            mine = ForkingPickler.loads(handle[0])
            mine.fill_(7.0)
            # it lies on the device of the rank that shared it
            pg.synchronize(mine.device)
        dist.barrier()
        seen = json_values(mine)
        dist.barrier()
        return seen

    return value_or_refusal(call)


@case(
    "collectives/memory-of-another-rank",
    spec="What one rank writes into memory that another shared with it is seen by both.",
    capability=(COLLECTIVES, Capability.IPC),
    traps=("C11",),
)
def test_memory_of_another_rank(world, gpu):
    gpu.ipc_collect()
    check_each_rank(
        world(2, _write_to_shared_memory), [[7.0] * 16] * 2, "memory shared between two ranks"
    )


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


def _reduce_scatter_uneven(rank):
    import torch
    import torch.distributed as dist

    def call():
        parts = [
            torch.full((place + 1,), (rank.rank + 1.0) * (place + 1), device=rank.gpu.device)
            for place in range(rank.world)
        ]
        mine = torch.zeros(rank.rank + 1, device=rank.gpu.device)
        dist.reduce_scatter(mine, parts)
        return json_values(mine)

    return value_or_refusal(call)


@case(
    "collectives/uneven-reduce-scatter",
    spec="reduce_scatter of tensors of different sizes is right, or refused.",
    capability=COLLECTIVES,
)
def test_uneven_reduce_scatter(world):
    expected = [[6.0 * (rank + 1)] * (rank + 1) for rank in range(3)]
    check_right_or_refused(world(3, _reduce_scatter_uneven), expected, "an uneven scatter")


def _move_alone(rank):
    import torch
    import torch.distributed as dist

    mine = rank_tensor(rank, payload(rank.rank))
    part, whole, output = (torch.zeros_like(mine) for _ in range(3))
    dist.all_gather([part], mine)
    dist.all_gather_into_tensor(whole, mine)
    dist.reduce_scatter_tensor(output, mine)
    return [json_values(each) for each in (part, whole, output)]


@case(
    "collectives/movement-alone",
    spec="all_gather, all_gather_into_tensor and reduce_scatter_tensor of one rank copy.",
    capability=COLLECTIVES,
)
def test_movement_alone(world):
    check_each_rank(world(1, _move_alone), [[payload(0)] * 3], "copies of one rank")


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


GIB = 1 << 30
HUGE = (1 << 32) + 16


LOOKED_AT = [0, 12345, (1 << 31) - 1, 1 << 31, (1 << 31) + 7, (1 << 32) - 1, 1 << 32]
LOOKED_AT += [HUGE - 2, HUGE - 1]


def _broadcast_huge_tensor(rank):
    """Broadcast from rank 1; the bytes at both ends and at both sides of 2^31 and 2^32."""
    import torch
    import torch.distributed as dist

    # a CPU gives memory to zeros when they are written, so the sender's take next to none
    value = torch.zeros(HUGE, dtype=torch.uint8, device=rank.gpu.device)
    if rank.rank == 1:
        marks = torch.arange(11, 11 + len(LOOKED_AT), dtype=torch.uint8)
        value[LOOKED_AT] = marks.to(rank.gpu.device)
    dist.broadcast(value, 1)
    return value[LOOKED_AT].tolist()


@case(
    "collectives/huge-buffer",
    spec="A broadcast of more than 2^31 elements and more than 4 GiB reaches each of them.",
    capability=COLLECTIVES,
    default=False,
    timeout_s=180.0,
    does_not_show="every element: it looks at both ends and at both sides of 2^31 and 2^32",
)
def test_huge_buffer(gpu, world):
    needed = (2 if gpu.plugin.shared else 1) * HUGE + 4 * GIB
    free = gpu.mem_get_info()[0]
    if free < needed:
        raise NotHere(f"needs {needed / GIB:.0f} GiB of free memory, and {free / GIB:.0f} are free")
    expected = list(range(11, 11 + len(LOOKED_AT)))
    check_each_rank(world(2, _broadcast_huge_tensor), [expected] * 2, f"some of {HUGE} bytes")
