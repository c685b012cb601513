"""Failures for real: ranks that call something else, are killed, hang or leave, and what remains.

Every case runs on the checked collectives of ``gpu.comm.checked()``. A bound on time is the stated
timeout plus two seconds.
"""

from __future__ import annotations

import os
import signal
import time

from portagpu.contract import Capability
from portagpu.suite import case

COLLECTIVES = Capability.COLLECTIVES
KINDS = ("collective", "shape", "dtype", "root", "reduce-op", "splits", "barrier")
LIMIT_S = 2.0
SLACK_S = 2.0
PATIENCE_S = 20.0
NAP_S = 300.0


def _collective_error(action):
    """[type, message, lost ranks, seconds] of the CollectiveError of ``action``, or None."""
    from portagpu.errors import CollectiveError

    started = time.monotonic()
    try:
        action()
    except CollectiveError as error:
        lost = list(getattr(error, "ranks", ()))
        return [type(error).__name__, str(error), lost, time.monotonic() - started]
    return None


def _call_something_else(rank, kind):
    """Call another collective on the last rank than on the others, then a barrier on all."""
    import torch
    import torch.distributed as dist

    comm = rank.gpu.comm.checked(timeout_s=PATIENCE_S)
    odd = rank.rank == rank.world - 1
    ones = torch.ones(4, device=rank.gpu.device)
    other = {
        "collective": lambda: comm.broadcast(ones),
        "shape": lambda: comm.all_reduce(torch.ones(5, device=rank.gpu.device)),
        "dtype": lambda: comm.all_reduce(ones.int()),
        "root": lambda: comm.broadcast(ones, src=1),
        "reduce-op": lambda: comm.all_reduce(ones, dist.ReduceOp.MAX),
        "splits": lambda: _exchange(rank, comm, 2),
        "barrier": comm.barrier,
    }
    usual = {
        "root": lambda: comm.broadcast(ones),
        "splits": lambda: _exchange(rank, comm, 1),
    }.get(kind, lambda: comm.all_reduce(ones))
    first = _collective_error(other[kind] if odd else usual)
    return {"first": first, "then": _collective_error(comm.barrier), "ones": ones.cpu().tolist()}


def _exchange(rank, comm, rows):
    import torch

    n, device = rank.world, rank.gpu.device
    sent, received = torch.ones(n * rows, device=device), torch.zeros(n, device=device)
    comm.all_to_all_single(received, sent, [1] * n, [rows] * n)


@case(
    "failures/mismatch-is-refused",
    spec="Where one rank calls another collective, shape, dtype, root, reduce op or split, every "
    "rank of a checked group raises, naming both sides, and no tensor is changed.",
    capability=COLLECTIVES,
    covers=("Comm.checked",),
    params={"kind": KINDS, "n": (2, 3)},
)
def test_mismatch_is_refused(world, kind, n):
    for me, seen in enumerate(world(n, _call_something_else, kind=kind)):
        assert seen["first"] is not None, f"rank {me} was told of no error: another {kind}"
        name, message, _, _ = seen["first"]
        assert name == "CollectiveMismatch", f"rank {me} got {name} for another {kind}: {message}"
        assert f"rank {n - 1}" in message, f"rank {me} is not told who differs: {message}"
        assert "rank 0" in message, f"rank {me} is not told from whom: {message}"
        assert seen["ones"] == [1.0] * 4, f"rank {me} has {seen['ones']} after a refused {kind}"


@case(
    "failures/group-is-unusable-afterwards",
    spec="After a mismatch every further call of a checked group raises and repeats the cause.",
    capability=COLLECTIVES,
    covers=("Comm.checked",),
)
def test_group_is_unusable_afterwards(world):
    for me, seen in enumerate(world(3, _call_something_else, kind="dtype")):
        assert seen["then"] is not None, f"rank {me} goes on in a group that is out of step"
        name, message, _, _ = seen["then"]
        cause = seen["first"][1]
        assert name == "CollectiveError", f"rank {me} got {name} from a group that is out of step"
        assert cause in message, f"rank {me} is not told the cause again: {message}"


def _sum_in_new_group(rank):
    import torch
    import torch.distributed as dist

    comm = rank.gpu.comm.checked(timeout_s=PATIENCE_S)
    first = _collective_error(
        lambda: comm.all_reduce(torch.ones(1 + rank.rank, device=rank.gpu.device))
    )
    fresh = rank.gpu.comm.checked(dist.new_group(), timeout_s=PATIENCE_S)
    tensor = torch.ones(1, device=rank.gpu.device)
    fresh.all_reduce(tensor)
    return [first is not None, tensor.item()]


@case(
    "failures/new-group-after-mismatch",
    spec="After a mismatch a new group of the same ranks works.",
    capability=COLLECTIVES,
    covers=("Comm.checked",),
    params={"n": (2, 3)},
)
def test_new_group_after_mismatch(world, n):
    for me, (refused_first, total) in enumerate(world(n, _sum_in_new_group)):
        assert refused_first, f"rank {me} was told of no error"
        assert total == n, f"rank {me} sums {total} over a new group of {n}"


def _initialise_again(rank, path):
    """Destroy and initialise the default group twice; a sum over each."""
    import torch
    import torch.distributed as dist

    sums = []
    for number in range(2):
        dist.barrier()
        dist.destroy_process_group()
        store = dist.FileStore(f"{path}-{number}", rank.world)
        dist.init_process_group(
            rank.gpu.comm.init_string,
            store=store,
            rank=rank.rank,
            world_size=rank.world,
            device_id=rank.gpu.comm.device_id,
        )
        tensor = torch.ones(1, device=rank.gpu.device)
        dist.all_reduce(tensor)
        sums.append(tensor.item())
    return sums


@case(
    "failures/initialise-again",
    spec="A process group that was destroyed can be initialised again, and reduces.",
    capability=COLLECTIVES,
    params={"n": (2, 3)},
)
def test_initialise_again(world, n, tmp_path):
    for me, sums in enumerate(world(n, _initialise_again, path=str(tmp_path / "store"))):
        assert sums == [n, n], f"rank {me} sums {sums} over groups of {n} that were made again"


def _connect_ranks(rank, tensor, group=None):
    """Sum a tensor of that size once, so that connecting the ranks is not in the measured time."""
    import torch.distributed as dist

    dist.all_reduce(tensor, group=group)
    rank.gpu.synchronize()


def _lose_rank_in_checked_group(rank, victim, how):
    """Kill or stop one rank inside a large all-reduce, or keep it away; the others' errors."""
    import torch

    large = torch.ones(1 << 22, device=rank.gpu.device)
    _connect_ranks(rank, large.clone())
    comm = rank.gpu.comm.checked(timeout_s=LIMIT_S)
    if rank.rank == victim:
        if how == "absent":
            time.sleep(NAP_S)
        end = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how]
        # behind the agreement of the ranks and before the library: its peers are inside
        torch.distributed.all_reduce = lambda *_: os.kill(os.getpid(), end)
    return {
        "first": _collective_error(lambda: comm.all_reduce(large)),
        "then": _collective_error(comm.barrier),
    }


@case(
    "failures/lost-rank-is-named",
    spec="A rank that is killed or stopped in an all-reduce, or never calls it, is named with the "
    "collective on every other rank within the timeout and two seconds.",
    capability=COLLECTIVES,
    covers=("Comm.checked",),
    params={"how": ("killed", "stopped", "absent"), "victim": (0, 2)},
)
def test_lost_rank_is_named(world, how, victim):
    told = world(4, _lose_rank_in_checked_group, victim=victim, how=how, lost=[victim])
    for me, seen in enumerate(told):
        if me == victim:
            continue
        assert seen["first"] is not None, f"rank {me} was told of no error with rank {victim} {how}"
        name, message, lost, seconds = seen["first"]
        assert name == "RankLost", f"rank {me} got {name} with rank {victim} {how}: {message}"
        assert lost == [victim], f"rank {me} is told that {lost} are lost, and it is {victim}"
        assert "all_reduce(SUM) of float32" in message, f"the collective is not named: {message}"
        limit = LIMIT_S + SLACK_S
        assert seconds < limit, f"rank {me} was told after {seconds:.1f} s, the bound is {limit} s"
        assert seen["then"] is not None, f"rank {me} goes on without rank {victim}"


def _lose_rank_in_plain_group(rank, victim):
    """Seconds until torch's own all_reduce raises after one rank was killed, or None."""
    import datetime

    import torch
    import torch.distributed as dist

    group = dist.new_group()
    tensor = torch.ones(1 << 20, device=rank.gpu.device)
    _connect_ranks(rank, tensor, group)
    if rank.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    try:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        # without a limit NCCL puts the wait into the stream and returns, and its watchdog ends the
        # process after its dump (torch, ProcessGroupNCCL.cpp, WorkNCCL::wait and Watchdog::runLoop)
        work.wait(datetime.timedelta(seconds=LIMIT_S))
        rank.gpu.synchronize()
    except RuntimeError:
        return time.monotonic() - started
    return None


@case(
    "failures/killed-rank-ends-the-collective",
    spec="Where a rank is killed, waiting with a limit for the library's own all-reduce raises on "
    "every other rank within the limit and two seconds.",
    capability=COLLECTIVES,
    does_not_show="a wait without a limit, in which NCCL raises nothing",
)
def test_killed_rank_ends_the_collective(world):
    for me, seconds in enumerate(world(4, _lose_rank_in_plain_group, victim=1, lost=[1])):
        if me != 1:
            limit = LIMIT_S + SLACK_S
            assert seconds is not None, f"rank {me} finished an all-reduce without rank 1"
            assert seconds < limit, f"rank {me} waited {seconds:.1f} s, the bound is {limit} s"


def _pid_of_survivor(rank, victim):
    import torch.distributed as dist

    dist.barrier()
    if rank.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@case(
    "failures/no-process-is-left",
    spec="After a rank was killed, no process of its world is left.",
    capability=COLLECTIVES,
)
def test_no_process_is_left(world):
    pids = [pid for pid in world(3, _pid_of_survivor, victim=1, lost=[1]) if pid is not None]
    left = [pid for pid in pids if _is_alive(pid)]
    assert not left, f"{len(left)} of {len(pids)} ranks still run after their world ended"


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _cross_sends(rank):
    """Send on both ranks without a receive; [type of the error or "", seconds]."""
    import datetime

    import torch
    import torch.distributed as dist

    other, group = 1 - rank.rank, dist.new_group()
    large = torch.ones(1 << 24, device=rank.gpu.device)
    # both directions are connected before nobody answers
    met = [(dist.isend, large), (dist.irecv, torch.empty_like(large))]
    for work in dist.batch_isend_irecv([dist.P2POp(*each, other, group) for each in met]):
        work.wait()
    rank.gpu.synchronize()
    rank.broke_group = True
    started = time.monotonic()
    try:
        dist.isend(large, other, group=group).wait(datetime.timedelta(seconds=LIMIT_S))
        rank.gpu.synchronize()
    except RuntimeError as error:
        return [type(error).__name__, time.monotonic() - started]
    return ["", time.monotonic() - started]


@case(
    "failures/crossed-sends-time-out",
    spec="Two ranks that send to each other and never receive raise where they wait with a limit, "
    "within it and two seconds.",
    capability=COLLECTIVES,
    does_not_show="a wait without a limit, in which NCCL raises nothing",
)
def test_crossed_sends_time_out(world):
    for me, (kind, seconds) in enumerate(world(2, _cross_sends)):
        limit = LIMIT_S + SLACK_S
        assert kind, f"rank {me} sent 64 MiB that nobody received, in {seconds:.1f} s"
        assert seconds < limit, f"rank {me} waited {seconds:.1f} s, the bound is {limit} s"


def _monitored_barrier_error(rank, late):
    """The message of a monitored barrier that one rank does not reach; "" if there is none."""
    import datetime

    import torch.distributed as dist

    # a group of "gloo" alone has no library for the device that the default group is bound to,
    # which torch asks for it (v2.13.0, distributed_c10d.py, _new_process_group_helper)
    group = dist.new_group(backend=rank.gpu.comm.init_string)
    dist.barrier(group=group, device_ids=rank.gpu.comm.device_ids)
    if rank.rank == late:
        return None
    try:
        # the function of that name takes no group that has another library too
        group.monitored_barrier(datetime.timedelta(seconds=LIMIT_S))
    except RuntimeError as error:
        return str(error)
    return ""


@case(
    "failures/monitored-barrier-names-the-rank",
    spec="A monitored barrier to which a rank does not come raises on every other rank, and names "
    "it on rank 0.",
    capability=COLLECTIVES,
    params={"late": (1, 2)},
)
def test_monitored_barrier_names_the_rank(world, late):
    told = world(3, _monitored_barrier_error, late=late)
    for me, message in enumerate(told):
        assert me == late or message, f"rank {me} passed a barrier that rank {late} did not reach"
    assert f"ank {late}" in told[0], f"rank 0 is not told of rank {late}: {told[0]}"


def _abort_group(rank):
    """Abort a group in which a sum waits for rank 1; [seconds, a sum over the default group]."""
    import torch
    import torch.distributed as dist

    group = dist.new_group()
    ones = torch.ones(1024, device=rank.gpu.device)
    _connect_ranks(rank, ones.clone(), group)
    dist.barrier(group=group)
    rank.broke_group = True
    pending = None
    if rank.rank == 0:
        pending = dist.all_reduce(ones, group=group, async_op=True)
    started = time.monotonic()
    if pending is not None:
        group.abort()
    seconds = time.monotonic() - started
    fresh = torch.ones(1, device=rank.gpu.device)
    dist.all_reduce(fresh)
    return [seconds, float(fresh)]


@case(
    "failures/abort-in-flight",
    spec="A group is aborted at once while a sum of it waits for another rank, and other groups "
    "go on.",
    capability=COLLECTIVES,
)
def test_abort_in_flight(world):
    for me, (seconds, summed) in enumerate(world(2, _abort_group)):
        assert seconds < SLACK_S, f"rank {me} needed {seconds:.1f} s to give a group up"
        assert summed == 2.0, f"rank {me} sums {summed} over the group that was not aborted"
