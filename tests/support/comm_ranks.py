"""What the ranks of the tests of ``gpu.comm.init`` do; each is one process of a world."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import portagpu
from portagpu.base.errors import PortagpuError
from portagpu.devices.collectives import init as init_module
from portagpu.devices.collectives.checked import check_plain_calls
from portagpu.devices.collectives.rendezvous import is_lost
from portagpu.devices.collectives.stores import open_sockets
from tests.support.waits import LOST_S, wait_until

TIMEOUT_S = 4.0
PF_EXITING = 4


def outcome_of(action):
    """What ``action`` raises, as [type, message, lost ranks]; else None."""
    try:
        action()
    except (PortagpuError, ValueError) as error:
        return [type(error).__name__, str(error), list(getattr(error, "ranks", ()))]
    return None


def running_tasks():
    """The names of the kernel's tasks of this process, sorted.

    Whoever joins a thread may go on before the kernel has removed its task, which then has the flag
    PF_EXITING of ``include/linux/sched.h`` (``/proc/PID/task/TID/stat``, field 9).
    """
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            if not int(fields.split()[6]) & PF_EXITING:
                names.append(name)
    return sorted(names)


def traces():
    """What a run may leave in a process: threads, sockets, variables and a group."""
    started = [thread.name for thread in threading.enumerate()]
    sockets = len(open_sockets())
    return [started, running_tasks(), sockets, dict(os.environ), dist.is_initialized()]


def threads_left():
    """The names of the threads, once only the main one is left.

    What waits for a lost rank ends when its connections are cut: soon, and not at once.
    """
    wait_until(lambda: threading.active_count() == 1, lambda: str(threading.enumerate()))
    return [thread.name for thread in threading.enumerate()]


def facts(world):
    return {
        "rank": world.rank,
        "world": world.world_size,
        "local": [world.local_rank, world.local_world_size],
        "launcher": world.launcher,
        "engine": world.engine,
        "members": [each.rank for each in world.members],
        "pid": world.members[world.rank].pid == os.getpid(),
    }


def join(rank, environment=None, times=2, numbers=None, **options):
    """Join, sum and leave, several times; what the process then has more than before."""
    for name in [name for name in os.environ if name.endswith(("RANK", "WORLD_SIZE"))]:
        del os.environ[name]
    mine = {} if environment is None else environment[rank.rank]
    os.environ.update(mine)
    if numbers is not None:
        options["rank"] = numbers[rank.rank]
    # torch's pool of threads begins with the first tensor
    sum([torch.ones(4096).sum() for _ in range(2)])
    seen, before = [], None
    for _ in range(times):
        with rank.gpu.comm.init(timeout_s=60.0, **options) as world:
            tensor = torch.tensor([1.0 + world.rank])
            dist.all_reduce(tensor)
            group = dist.new_group()
            dist.all_reduce(tensor, group=group)
            seen.append({**facts(world), "sum": tensor.item()})
        del group, world
        rank.gpu.comm.shutdown()
        after = traces()
        before = after if before is None else before
    changed = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    return {"seen": seen, "changed": changed, "left": [before[0], after[4]]}


def fail(rank, port, world_size, numbers=None, victim=None, how="never"):
    """Join where one rank never comes, or ends or stops when it has registered."""
    me = rank.rank
    if me == victim and how == "never":
        return None
    if me == victim:
        end = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how]
        init_module.meet = _then(init_module.meet, lambda: os.kill(os.getpid(), end))
    number, size = (numbers or range(rank.world))[me], world_size[me]
    method = f"tcp://127.0.0.1:{port}"
    first = outcome_of(
        lambda: rank.gpu.comm.init(
            rank=number, world_size=size, init_method=method, timeout_s=TIMEOUT_S
        )
    )
    rank.gpu.comm.shutdown()
    # the process can still be a world of its own
    with rank.gpu.comm.init(rank=0, world_size=1) as world:
        alone = world.world_size
    left = threads_left()
    return {"first": first, "alone": alone, "threads": left, "group": dist.is_initialized()}


def _then(function, action):
    def call(*arguments, **options):
        found = function(*arguments, **options)
        action()
        return found

    return call


def joins_what_ends(rank):
    """Join a store that answers once and ends before torch's own client comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        method = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def answer_once():
            server.accept()[0].close()
            server.close()

        thread = threading.Thread(target=answer_once)
        thread.start()
        options = {"rank": 1, "world_size": 2, "timeout_s": 0.5}
        found = outcome_of(lambda: rank.gpu.comm.init(init_method=method, **options))
        thread.join()
    return found


def one_device(rank, port, devices):
    """Every rank says that it has the device of its number in ``devices``."""
    gpu = SimpleNamespace(
        uuid=devices[rank.rank], pci=None, listens=lambda: False, labelled_block=None
    )
    comm = replace(rank.gpu.comm, device_ids=[0], _gpu=gpu)
    return outcome_of(lambda: comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}"))


def lose(rank, port, victim, how):
    """One rank is lost in a collective that the others wait for; they shut down."""
    world = rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}")
    # rank 0 holds the store: the others have to be through init before it is lost
    dist.barrier()
    if rank.rank == victim:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])
    work = dist.all_reduce(torch.ones(4), async_op=True)
    started = time.monotonic()  # allowed: what is measured comes with the answer
    first = outcome_of(lambda: world.shutdown(timeout_s=LOST_S))
    seconds = time.monotonic() - started  # allowed: what is measured comes with the answer
    del work
    with rank.gpu.comm.init(rank=0, world_size=1) as alone:
        return {
            "first": first,
            "threads": threads_left(),
            "alone": alone.world_size,
            # torch's own limit is half an hour
            "long": seconds > 60.0,
        }


def lost_before_shutdown(rank, port, victims, how, after):
    """Some ranks end, stop or hang when all is done that the ranks do together; the others leave.

    What they warn is read from the process's own standard error, as a user sees it.
    """
    world = rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}")
    if after == "groups":
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(4), group=dist.new_group())
        del pair
    if after == "checked":
        rank.gpu.comm.checked(timeout_s=60.0).all_reduce(torch.ones(4))
    _all_through(port, rank)
    if rank.rank in victims:
        if how == "ends":
            os._exit(0)
        if how == "hangs":
            time.sleep(300.0)
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])
    with tempfile.TemporaryFile("w+") as file, contextlib.redirect_stderr(file):
        first = outcome_of(lambda: world.shutdown(timeout_s=LOST_S))
        file.seek(0)
        said = file.read()
    again = outcome_of(rank.gpu.comm.shutdown)
    with rank.gpu.comm.init(rank=0, world_size=1) as alone:
        return {
            "first": first,
            "said": said,
            "again": again,
            "alone": alone.world_size,
            "threads": threads_left(),
        }


def _all_through(port, rank):
    """Wait until all ranks are through what they do together, without a collective.

    The store is rank 0's, which has to wait until the others have read that it is.
    """
    run = init_module._run
    run.store.add("test/through", 1)
    wait_until(lambda: run.store.add("test/through", 0) >= rank.world, "not all are through")
    run.store.add("test/seen", 1)
    if rank.rank == 0:
        wait_until(lambda: run.store.add("test/seen", 0) >= rank.world, "not all have seen it")


def waits_for_the_last(rank, port):
    """Rank 0 shuts down when all others wait for it."""
    world = rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}")
    others = [f"left/{each}" for each in range(1, rank.world)]
    if rank.rank == 0:
        wait_until(partial(init_module._run.store.check, others), "the others do not leave")
    return outcome_of(lambda: world.shutdown(timeout_s=60.0))


def comes_late(rank, method, late, note):
    """One rank shuts down when all others have ended, which have gone on without it."""
    world = rank.gpu.comm.init(timeout_s=60.0, init_method=method)
    _all_through(None, rank)
    others = [each for each in range(rank.world) if each != late]
    if rank.rank == late:
        for each in others:
            path = Path(f"{note}/{each}")
            wait_until(path.exists, f"rank {each} leaves no note")
            wait_until(partial(is_lost, *map(int, path.read_text().split())), f"{each} is there")
    with tempfile.TemporaryFile("w+") as file, contextlib.redirect_stderr(file):
        # the late one never has to wait
        first = outcome_of(lambda: world.shutdown(timeout_s=300.0 if rank.rank == late else LOST_S))
        file.seek(0)
        said = file.read()
    path = Path(f"{note}/{rank.rank}")
    path.with_suffix(".new").write_text(f"{os.getpid()} {world.members[rank.rank].started}")
    path.with_suffix(".new").rename(path)
    return [first, said, dist.is_initialized(), threads_left()]


def keeps_its_group(rank, method, note):
    """Leave while the program has a group; whether the store's file is there then and at the end.

    Rank 0 closes its store when the other one is through.
    """
    others, close = Path(f"{note}/through"), init_module._close
    if rank.rank == 0:

        def late(meeting):
            wait_until(others.exists, "rank 1 is not through")
            close(meeting)

        init_module._close = late
    with rank.gpu.comm.init(timeout_s=60.0, init_method=method):
        group = dist.new_group()
    file = Path(method.removeprefix("file://"))
    left = file.exists()
    if rank.rank:
        others.touch()
    del group
    gc.collect()
    return [left, file.exists()]


def rank_0_is_lost_and_block_ends(rank, port, error):
    """Rank 0 is killed inside its block; what rank 1 then sees, whose block ends with ``error``."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append([record.levelname, record.getMessage()])
    logging.getLogger("portagpu").addHandler(handler)

    def act():
        with rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}") as world:
            _all_through(port, rank)
            if rank.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                if error != "none":
                    raise ValueError("the program's own")
            finally:
                if error == "finally":
                    world.shutdown()

    return [outcome_of(act), said, dist.is_initialized()]


def checked_is_lost(rank, port, victim, how, members):
    """One rank is killed or stopped before a checked call, over the store of rank 0."""
    rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}")
    group = dist.new_group(members)
    if rank.rank in members:
        comm = rank.gpu.comm.checked(group)
    _all_through(port, rank)
    if rank.rank == victim:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[how])
    first = None
    comm.timeout_s = LOST_S
    while first is None:
        # a rank that is not a member may take a moment to die
        first = outcome_of(lambda: comm.all_reduce(torch.ones(4)))
    # as the end of a program that does not catch it: the store ends with rank 0
    rank.gpu.comm.shutdown(0.0)
    return first


def keeps_other_sockets(rank, port, victim):
    """Connections that another thread makes during init, when a rank is lost in a collective."""
    pairs, ended = [], threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def connect():
        while not ended.wait(0.001):  # allowed: a pause between looks
            here = socket.create_connection(server.getsockname())
            pairs.append((here, server.accept()[0]))

    thread = threading.Thread(target=connect)
    thread.start()
    world = rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}")
    ended.set()
    thread.join()
    if rank.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    outcome_of(lambda: world.shutdown(timeout_s=0.5))  # allowed: what it limits never ends
    del work
    alive = 0
    for here, there in pairs:
        with here, there:
            here.send(b"x")
            alive += there.recv(1) == b"x"
    server.close()
    return [alive == len(pairs), bool(pairs)]


def interrupted(rank, method, number):
    """Ctrl-C while this rank waits for another one; the threads that are left soon after."""
    found = []
    for seconds in (0.3, 0.6):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            rank.gpu.comm.init(rank=number, world_size=2, init_method=method, timeout_s=60.0)
        except KeyboardInterrupt:
            found.append("interrupted")
        finally:
            signal.signal(signal.SIGINT, before)
        timer.join()
        found.append(len(threads_left()))
    with rank.gpu.comm.init(rank=0, world_size=1) as alone:
        return [*found, alone.world_size]


def forks(rank, port):
    """A fork of a rank leaves the block with an error; the rank goes on."""
    with rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}") as world:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                again = outcome_of(lambda: rank.gpu.comm.init(rank=0, world_size=1))
                world.shutdown(0.0)
                os.write(writer, again[1].encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        said = os.read(reader, 4096).decode()
        os.close(reader)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return [tensor.item(), said]


def store_limit(rank, port):
    """How long the group's store waits for a rank that writes late, in seconds."""
    method = f"tcp://127.0.0.1:{port}"
    found = []
    for limit in (None, 77.0):
        with rank.gpu.comm.init(timeout_s=60.0, init_method=method, collective_timeout_s=limit):
            found.append(dist.group.WORLD.get_group_store().timeout.total_seconds())
    return found


def raises_inside(rank, port):
    """Rank 1 raises in its block, does not wait for the others, and says that it is gone."""
    gone = 1
    try:
        with rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}"):
            if rank.rank == 1:
                raise KeyError("mine")
            store = init_module._run.store
            gone = wait_until(partial(store.add, "gone", 0), "rank 1 does not say that it is gone")
            del store
    except KeyError as error:
        return [str(error), dist.is_initialized(), gone]
    return ["", dist.is_initialized(), gone]


def model_lives_on(rank, port):
    """A model that holds its group keeps neither the store's port nor its thread."""
    with rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}"):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        group = dist.group.WORLD
    free = True
    if rank.rank == 0:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free = server.connect_ex(("127.0.0.1", port)) != 0
    with rank.gpu.comm.init(timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}") as world:
        return [free, world.world_size, model is not None and group is not None]


def checked(rank, port):
    """A mismatch in a checked world; what it covers."""
    with rank.gpu.comm.init(
        timeout_s=60.0, init_method=f"tcp://127.0.0.1:{port}", checked=True
    ) as world:
        first = outcome_of(lambda: world.checked.all_reduce(torch.ones(3 + rank.rank)))
        plain = None
        if world.checks_plain_calls:
            plain = outcome_of(lambda: dist.all_reduce(torch.ones(2)))
        return {"first": first, "plain": plain, "covers": world.checks_plain_calls}


def own_device(rank):
    """The index of ``backend()`` in a new registry, as in a script that a launcher starts."""
    return [portagpu.backend().index, rank.gpu.comm.c10d_name]


def plain(rank, kind):
    """Plain calls through the hooks: good ones, one that differs, and one without checks."""
    comm = rank.gpu.comm.checked()
    stop = check_plain_calls(comm)
    odd, good, four = rank.rank == 1, torch.ones(1), torch.ones(4)
    dist.all_reduce(good)
    dist.barrier()
    comm.barrier()
    dist.all_gather_object([None] * rank.world, {"rank": rank.rank})

    def act():
        if kind == "shape":
            dist.all_reduce(torch.ones(5) if odd else four)
        elif kind == "dtype":
            dist.all_reduce(torch.ones(4, dtype=torch.int32) if odd else four)
        elif kind == "collective":
            dist.broadcast(four, 0) if odd else dist.all_reduce(four)
        elif kind == "root":
            dist.broadcast(four, 1 if odd else 0)
        elif not odd:
            dist.all_reduce(four)
        else:
            time.sleep(3.0)  # allowed: it is late for a call of 1 s
            dist.all_reduce(four)

    if kind == "late":
        comm.timeout_s = 1.0
    first = outcome_of(act)
    stop()
    after = torch.ones(1)
    dist.all_reduce(after)
    return {
        "first": first,
        "good": good.item(),
        "after": after.item(),
        "tensor": four.tolist(),
    }
