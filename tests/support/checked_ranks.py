"""What the ranks of the tests of checked collectives do."""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist

from portagpu.base.errors import CollectiveError
from tests.support.waits import LOST_S

NAP_S = 300.0


def outcome_of(action):
    """What ``action`` raises, as [type, message, lost ranks, seconds], or its value."""
    started = time.monotonic()  # allowed: what is measured comes with the answer
    try:
        return action()
    except CollectiveError as error:
        lost = list(getattr(error, "ranks", ()))
        return [
            type(error).__name__,
            str(error),
            lost,
            time.monotonic() - started,
        ]  # allowed: what is measured comes with the answer


def gaps(rank, *, name):
    """A result that belongs into a view of rank 1; what the others see, and the view's memory."""
    whole = torch.ones(3, 4)
    views = {"expand": torch.ones(1).expand(3, 2), "dense": torch.ones(2, 3).t()}
    mine = views.get(name, whole[:, ::2] if rank.rank == 1 else torch.ones(3, 2))
    comm = rank.gpu.comm.checked(timeout_s=60.0)
    call = getattr(comm, name, comm.all_reduce)
    parts = [[torch.ones(3, 2)] * 2] if name == "scatter" and rank.rank == 0 else []
    found = outcome_of(lambda: call(mine, *parts))
    return [found, whole.tolist() == torch.ones(3, 4).tolist(), mine.sum().item()]


def all_collectives(rank):
    """One call of each, with values that are exact in any order."""
    comm = rank.gpu.comm.checked(timeout_s=60.0)
    me, n = rank.rank, rank.world
    summed = torch.tensor([float(me)])
    comm.all_reduce(summed)
    sent = torch.tensor([me])
    comm.broadcast(sent, src=n - 1)
    reduced = torch.tensor([me + 1])
    comm.reduce(reduced, dst=0, op=dist.ReduceOp.MAX)
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
    comm.all_gather(parts, torch.tensor([me]))
    whole = torch.zeros(n, dtype=torch.int64)
    comm.all_gather_into_tensor(whole, torch.tensor([10 * me]))
    share = torch.zeros(1, dtype=torch.int64)
    comm.reduce_scatter(share, [torch.tensor([i]) for i in range(n)])
    shard = torch.zeros(1, dtype=torch.int64)
    comm.reduce_scatter_tensor(shard, torch.arange(n))
    # rank r sends r + 1 rows to everybody
    sends, receives = [me + 1] * n, [other + 1 for other in range(n)]
    swapped = torch.zeros(sum(receives), 2)
    comm.all_to_all_single(swapped, torch.full((sum(sends), 2), float(me)), receives, sends)
    gathered = [torch.zeros(1) for _ in range(n)] if me == 0 else None
    comm.gather(torch.tensor([float(me)]), gathered, dst=0)
    given = torch.zeros(1)
    comm.scatter(given, [torch.tensor([float(i)]) for i in range(n)] if me == 0 else None, src=0)
    comm.barrier()
    later = torch.tensor([1.0])
    pending = comm.all_reduce(later, async_op=True)
    pending.wait()
    return {
        "all_reduce": summed.item(),
        "broadcast": sent.item(),
        "reduce": reduced.item() if me == 0 else None,
        "all_gather": [part.item() for part in parts],
        "all_gather_into_tensor": whole.tolist(),
        "reduce_scatter": share.item(),
        "reduce_scatter_tensor": shard.item(),
        "all_to_all_single": swapped[:, 0].tolist(),
        "gather": None if gathered is None else [part.item() for part in gathered],
        "scatter": given.item(),
        "async": later.item(),
    }


def differ(rank, kind):
    """Rank 1 calls something else than all others; then everybody calls once more."""
    comm = rank.gpu.comm.checked(timeout_s=60.0)
    odd = rank.rank == 1
    four = torch.ones(4)

    def act():
        if kind == "collective":
            comm.broadcast(four) if odd else comm.all_reduce(four)
        elif kind == "shape":
            comm.all_reduce(torch.ones(5 if odd else 4))
        elif kind == "dtype":
            comm.all_reduce(torch.ones(4, dtype=torch.int32) if odd else four)
        elif kind == "root":
            comm.broadcast(four, src=1 if odd else 0)
        elif kind == "reduce op":
            comm.all_reduce(four, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
        elif kind == "splits":
            n = rank.world
            rows = [2] * n if odd else [1] * n
            comm.all_to_all_single(torch.zeros(n), torch.zeros(sum(rows)), [1] * n, rows)
        elif kind == "barrier":
            comm.all_reduce(four) if odd else comm.barrier()

    return {"first": outcome_of(act), "then": outcome_of(comm.barrier), "tensor": four.tolist()}


def lose(rank, how, victim):
    """The victim is killed, hangs or leaves before or inside an all-reduce."""
    comm = rank.gpu.comm.checked()
    tensor = torch.ones(1 << 22)
    comm.all_reduce(torch.ones(1))
    comm.timeout_s = LOST_S

    def act():
        if rank.rank == victim and how == "sleeps":
            time.sleep(NAP_S)
        if rank.rank == victim and how == "raises":
            raise ValueError("this rank gave up")
        if rank.rank == victim and how != "sleeps":
            # inside: the others know of the call, and this rank never runs it
            signal_ = signal.SIGKILL if how == "killed" else signal.SIGSTOP
            comm._compare_calls = lambda *_: os.kill(os.getpid(), signal_)
            comm._store.set(comm._key(comm._number, "call", rank.rank), _same_call(tensor))
        comm.all_reduce(tensor)

    return {"first": outcome_of(act), "then": outcome_of(comm.barrier)}


def _same_call(tensor):
    import json
    from dataclasses import asdict

    from portagpu.devices.collectives.calls import call_of_tensor

    return json.dumps(asdict(call_of_tensor("all_reduce", tensor, op=dist.ReduceOp.SUM)))


def again(rank):
    """A mismatch, and a new group that works."""
    comm = rank.gpu.comm.checked(timeout_s=60.0)
    first = outcome_of(lambda: comm.all_reduce(torch.ones(1 + rank.rank)))
    group = dist.new_group()
    fresh = rank.gpu.comm.checked(group, timeout_s=60.0)
    tensor = torch.ones(1)
    fresh.all_reduce(tensor)
    return {"first": first[0], "sum": tensor.item()}


def members(rank):
    """A checked group of two of three ranks."""
    group = dist.new_group([0, 2])
    if rank.rank == 1:
        return outcome_of(lambda: rank.gpu.comm.checked(group))[1]
    comm = rank.gpu.comm.checked(group, timeout_s=60.0)
    tensor = torch.tensor([float(rank.rank)])
    comm.all_reduce(tensor)
    odd = outcome_of(
        lambda: comm.all_reduce(torch.ones(1, dtype=torch.float64 if rank.rank else None))
    )
    return [tensor.item(), odd[1]]
