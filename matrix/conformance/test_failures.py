"""Failures for real: ranks that call something else, are killed, hang or leave, and what remains.

Every case runs on the checked collectives of ``gpu.comm.checked()``. A bound on time is the stated
timeout plus two seconds, in which waits for a CPU do not count.
"""

from __future__ import annotations

import os
import signal
import time

from portagpu.base.patience import LIMITS
from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.ranks import check_in_time, stopwatch, time_limited

COLLECTIVES = Capability.COLLECTIVES
KINDS = ("collective", "shape", "dtype", "root", "reduce-op", "splits", "barrier")
LIMIT_S = SLACK_S = LIMITS.lost_s
PATIENCE_S = 20.0
NAP_S = 300.0


def _collective_error(action):
    """[type, message, lost ranks, time] of the CollectiveError of ``action``, or None."""
    from portagpu.base.errors import CollectiveError

    spent = stopwatch()
    try:
        action()
    except CollectiveError as error:
        lost = list(getattr(error, "ranks", ()))
        return [type(error).__name__, str(error), lost, spent()]
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
        assert seen["first"] is not None, f"rank {me} got no error: another {kind}"
        name, message, _, _ = seen["first"]
        assert name == "CollectiveMismatch", f"rank {me} got {name} for another {kind}: {message}"
        assert f"rank {n - 1}" in message, f"rank {me} does not learn who differs: {message}"
        assert "rank 0" in message, f"rank {me} does not learn from whom: {message}"
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
        assert cause in message, f"rank {me} does not get the cause again: {message}"


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
        assert refused_first, f"rank {me} got no error"
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
        # after the agreement of the ranks and before the library: its peers are inside
        torch.distributed.all_reduce = lambda *_: os.kill(os.getpid(), end)
    spent = stopwatch()
    return {
        "first": _collective_error(lambda: comm.all_reduce(large)),
        "then": _collective_error(comm.barrier),
        "spent": spent(),
    }


@case(
    "failures/lost-rank-is-named",
    spec="A rank that is killed or stopped in an all-reduce, or never calls it, is named with the "
    "collective on every other rank within the timeout and two seconds.",
    capability=COLLECTIVES,
    covers=("Comm.checked",),
    params={"how": ("killed", "stopped", "absent"), "victim": (0, 2)},
    default={"victim": 2},
)
def test_lost_rank_is_named(world, how, victim):
    found = world(4, _lose_rank_in_checked_group, victim=victim, how=how, lost=[victim])
    with time_limited(seen["spent"] for seen in found if seen is not None):
        for me, seen in enumerate(found):
            if me != victim:
                _check_told_of_loss(me, seen, victim, how)


def _check_told_of_loss(me, seen, victim, how):
    assert seen["first"] is not None, f"rank {me} got no error with rank {victim} {how}"
    name, message, lost, spent = seen["first"]
    assert name == "RankLost", f"rank {me} got {name} with rank {victim} {how}: {message}"
    assert lost == [victim], f"rank {me} reports {lost} as lost, and it is {victim}"
    assert "all_reduce(SUM) of float32" in message, f"the collective is not named: {message}"
    check_in_time(spent, LIMIT_S + SLACK_S, f"rank {me} knew it after")
    assert seen["then"] is not None, f"rank {me} goes on without rank {victim}"


def _lose_rank_in_plain_group(rank, victim):
    """The time until torch's own all_reduce raises after one rank was killed, or None."""
    import datetime

    import torch
    import torch.distributed as dist

    group = dist.new_group()
    tensor = torch.ones(1 << 20, device=rank.gpu.device)
    _connect_ranks(rank, tensor, group)
    if rank.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    spent = stopwatch()
    try:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        # without a limit NCCL puts the wait into the stream and returns, and its watchdog ends the
        # process after its dump (torch, ProcessGroupNCCL.cpp, WorkNCCL::wait and Watchdog::runLoop)
        work.wait(datetime.timedelta(seconds=LIMIT_S))
        rank.gpu.synchronize()
    except RuntimeError:
        return spent()
    return None


@case(
    "failures/killed-rank-ends-the-collective",
    spec="Where a rank is killed, waiting with a limit for the library's own all-reduce raises on "
    "every other rank within the limit and two seconds.",
    capability=COLLECTIVES,
    does_not_show="a wait without a limit, in which NCCL raises nothing",
)
def test_killed_rank_ends_the_collective(world):
    found = world(4, _lose_rank_in_plain_group, victim=1, lost=[1])
    with time_limited(spent for spent in found if spent is not None):
        for me, spent in enumerate(found):
            if me != 1:
                assert spent is not None, f"rank {me} finished an all-reduce without rank 1"
                check_in_time(spent, LIMIT_S + SLACK_S, f"rank {me} waited")


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
    """Send on both ranks without a receive; [type of the error or "", time]."""
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
    spent = stopwatch()
    try:
        dist.isend(large, other, group=group).wait(datetime.timedelta(seconds=LIMIT_S))
        rank.gpu.synchronize()
    except RuntimeError as error:
        return [type(error).__name__, spent()]
    return ["", spent()]


@case(
    "failures/crossed-sends-time-out",
    spec="Two ranks that send to each other and never receive raise where they wait with a limit, "
    "within it and two seconds.",
    capability=COLLECTIVES,
    does_not_show="a wait without a limit, in which NCCL raises nothing",
)
def test_crossed_sends_time_out(world):
    found = world(2, _cross_sends)
    with time_limited(spent for _, spent in found):
        for me, (kind, spent) in enumerate(found):
            assert kind, f"rank {me} sent 64 MiB that nobody received"
            check_in_time(spent, LIMIT_S + SLACK_S, f"rank {me} waited")


def _monitored_barrier_error(rank, late):
    """[message of a monitored barrier that one rank does not reach or "", time]."""
    import datetime

    import torch.distributed as dist

    # a group of "gloo" alone has no library for the device that the default group is bound to,
    # which torch asks for it (v2.13.0, distributed_c10d.py, _new_process_group_helper)
    group = dist.new_group(backend=rank.gpu.comm.init_string)
    dist.barrier(group=group, device_ids=rank.gpu.comm.device_ids)
    if rank.rank == late:
        return None
    spent = stopwatch()
    try:
        # the function of that name takes no group that has another library too
        group.monitored_barrier(datetime.timedelta(seconds=LIMIT_S))
    except RuntimeError as error:
        return [str(error), spent()]
    return ["", spent()]


@case(
    "failures/monitored-barrier-names-the-rank",
    spec="A monitored barrier to which a rank does not come raises on every other rank, and names "
    "it on rank 0.",
    capability=COLLECTIVES,
    params={"late": (1, 2)},
)
def test_monitored_barrier_names_the_rank(world, late):
    found = world(3, _monitored_barrier_error, late=late)
    with time_limited(seen[1] for seen in found if seen is not None):
        for me, seen in enumerate(found):
            passed = f"rank {me} passed a barrier that rank {late} did not reach"
            assert me == late or seen[0], passed
        assert f"ank {late}" in found[0][0], f"rank 0 does not name rank {late}: {found[0][0]}"


def _abort_group(rank):
    """Abort a group in which a sum waits for rank 1; [time, a sum over the default group]."""
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
    spent = stopwatch()
    if pending is not None:
        group.abort()
    seconds = spent()
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
    found = world(2, _abort_group)
    for me, (_, summed) in enumerate(found):
        assert summed == 2.0, f"rank {me} sums {summed} over the group that was not aborted"
    with time_limited(spent for spent, _ in found):
        for me, (spent, _) in enumerate(found):
            check_in_time(spent, SLACK_S, f"rank {me} gave a group up in")
