"""What the ranks of the tests of worlds do."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

NAP_S = 300.0


def value(rank):
    return {"rank": rank.rank, "world": rank.world, "device": str(rank.gpu.device)}


def reduce(rank):
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([float(rank.rank + 1)])
    dist.all_reduce(tensor)
    return tensor.item()


def remember(name, value):
    """What the server gets before it forks ranks."""
    os.environ[name] = value


def end_process(begun):
    os._exit(7)


def sleep_long(begun):
    Path(begun).touch()
    time.sleep(300)


def environment(rank, name):
    return {key: os.environ.get(key) for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", name)}


def threads(rank):
    import torch

    return torch.get_num_threads()


def begins_with_the_compiler(rank):
    begins = "torch._dynamo" in sys.modules
    importlib.import_module("torch._dynamo")
    return begins


def steps(rank, count):
    for number in range(count):
        rank.step(f"step {number}", number=number)
    return count


def give(rank, what):
    import torch

    return {
        "tensor": torch.ones(2),
        "set": {1, 2},
        "bytes": b"x",
        "nan": [float("nan"), float("inf"), -float("inf")],
        "none": None,
        "large": "x" * 10_000_000,
        "deep": {"a": [1, 2.5, "ü", {"b": True}]},
    }[what]


def circle(rank):
    found = []
    found.append(found)
    return found


def prints(rank, size):
    print("on standard output", rank.rank)
    print('{"value": 1}', flush=True)
    print("on standard error", file=sys.stderr)
    os.write(1, b"x" * size)
    os.write(2, b"\n{\n")
    subprocess.run(["echo", "from a child"], check=True)
    return sys.stdin.read()


def raises(rank, culprit, kind="ValueError", nap_s=0.0):
    if rank.rank == culprit:
        rank.step("before the error")
        time.sleep(nap_s)  # allowed: it is slow
        if kind == "unprintable":
            raise Unprintable
        if kind == "exit":
            sys.exit(0)
        if kind == "interrupt":
            raise KeyboardInterrupt
        raise ValueError("wrong\n  number")
    return reduce(rank)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raises_while_others_sleep(rank, culprit):
    if rank.rank == culprit:
        raise ValueError("wrong number")
    time.sleep(NAP_S)


def dies(rank, culprit, how):
    if rank.rank == culprit:
        rank.step("before the end")
        print("last words", flush=False)
        if how == "SIGSEGV":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(0)
        else:
            os.kill(os.getpid(), getattr(signal, how))
    return reduce(rank)


def sleeps_in_place_of_the_collective():
    time.sleep(NAP_S)


def hangs(rank, culprit):
    rank.step("all the same")
    print("about to hang")
    if rank.rank == culprit:
        sleeps_in_place_of_the_collective()
    return reduce(rank)


def takes_fewer_steps(rank, culprit):
    for number in range(3):
        if number == 2 and rank.rank == culprit:
            time.sleep(NAP_S)
        rank.step(f"step {number}")
    time.sleep(NAP_S)


def stops(rank, culprit):
    if rank.rank == culprit:
        os.kill(os.getpid(), signal.SIGSTOP)
    return reduce(rank)


def goes_on(rank, how, times, then):
    """Gives signs of life, two a second."""
    for number in range(times):
        time.sleep(0.5)  # allowed: it is slow
        if how == "step":
            rank.step(f"step {number}")
        else:
            from portagpu.runs.world.rank import tell_alive

            tell_alive()
    if then == "hangs":
        time.sleep(NAP_S)
    return times


def all_hang(rank):
    time.sleep(NAP_S)


def children(rank, folder, how):
    """Start children that would outlive their rank, write who they are, then end as asked."""
    nap = [sys.executable, "-c", f"import time; time.sleep({NAP_S})"]
    started = [
        subprocess.Popen(nap),
        subprocess.Popen(nap, start_new_session=True),
        subprocess.Popen(["sh", "-c", f"sleep {int(NAP_S)} & sleep {int(NAP_S)}"]),
    ]
    pids = [process.pid for process in started]
    forked = os.fork()
    if forked == 0:  # holds the rank's pipe open
        time.sleep(NAP_S)
        os._exit(0)
    Path(folder, f"pids-{rank.rank}").write_text(" ".join(map(str, [*pids, forked])))
    rank.step("started children")
    if how == "raise":
        raise ValueError("left children")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(NAP_S)
    return "done"


def closes_every_file(rank):
    os.closerange(3, 4096)
    threading.Event().wait(NAP_S)


def ignores_signals(rank):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(NAP_S)


def early(rank, culprit, how):
    if rank.rank != culprit:
        return "early"
    time.sleep(1.0)  # allowed: it is slow
    if how == "raise":
        raise ValueError("late")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(NAP_S)
    return "late"


NOT_A_FUNCTION = 3


def init_slowly(culprit, nap_s):
    """What the server gets before it forks ranks: that rank comes late out of init."""
    import torch.distributed as dist

    init = getattr(dist.init_process_group, "plain", dist.init_process_group)

    def slow(*given, **named):
        init(*given, **named)
        if named["rank"] == culprit:
            time.sleep(nap_s)  # allowed: it is slow
        os.environ["THROUGH_INIT"] = repr(time.monotonic())

    slow.plain = init
    dist.init_process_group = slow if nap_s else init


def through_init(rank):
    """When this rank was through init, and when its function began: one clock for all ranks."""
    begun = time.monotonic()  # allowed: an order of events, not a time
    return [float(os.environ["THROUGH_INIT"]), begun]


def cannot_leave(rank):
    """Break the group so that leaving it would never end."""
    import torch.distributed as dist

    rank.broke_group = True
    dist.destroy_process_group = lambda: time.sleep(NAP_S)


def sends(rank, line):
    if rank.rank == 1:
        os.write(rank._channel.writer, line.encode("latin-1") + b"\n")
    time.sleep(NAP_S)


def writes_to_nobody(rank):
    """Write into a pipe that nobody reads, as a library does to a rank that is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        os.write(writer, b"x")
    except BrokenPipeError:
        return "an error"
    return "written"


def import_training():
    """What each rank that trains would import in seconds; for the rank server."""
    for name in ("_dynamo", "distributed.fsdp", "distributed.tensor.parallel"):
        importlib.import_module(f"torch.{name}")
    for name in ("pipelining", "checkpoint", "checkpoint.state_dict"):
        importlib.import_module(f"torch.distributed.{name}")


def program(rank, path, words, variables):
    """Run a file of Python as a launcher does; how it exited, what it printed, and its errors."""
    os.environ.update(variables)
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    sys.argv = [path, *words]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), err.getvalue()]
