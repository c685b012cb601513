"""One rank: it runs its function and reports its outcome to the server."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.patience import PATIENCE
from portagpu.base.subprocesses.channel import frame_text, frames
from portagpu.base.subprocesses.start import die_with_parent
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from portagpu.base.subprocesses import Channel
    from portagpu.devices.contract import Backend

C10D: Final = "distributed_c10d"
"""The file of torch's collectives. A rank that stops in it may be waiting for another."""
COMPILER: Final = "torch._dynamo"
"""What torch imports with the first optimiser or DDP of a process, in about a second."""
WAITING_FILE: Final = "/portagpu/devices/collectives/algorithms.py"
"""The file that waits for torch's collectives, whose own ``wait`` has no frame."""


_ALIVE_S: Final = 1.0
"""Between two signs of life: limits are longer by far."""


class Rank:
    """The argument of a rank's function: its number, its device, and a way to report.

    :param rank: its number, from 0.
    :param world: how many ranks there are.
    :param gpu: its opened device.
    :param channel: to the process that started it.
    """

    def __init__(self, rank: int, world: int, gpu: Backend, channel: Channel) -> None:
        self.rank = rank
        self.world = world
        self.gpu = gpu
        self.broke_group = False
        """Set by a function that breaks a group on purpose, so that the group is not destroyed."""
        self._channel = channel
        self._reported_s = time.monotonic()

    def step(self, name: str, **data: Any) -> None:
        """Announce that a step begins. Of hung ranks, the one with the fewest steps is blamed.

        :param name: what the step does, for messages.
        :param data: values that JSON holds, which the caller of the world gets with it.
        """
        self._channel.send({"step": name, "data": data})

    def tell_alive(self) -> None:
        """Have a limit of silence begin again, as a step does; at most one message a second."""
        if time.monotonic() - self._reported_s >= _ALIVE_S:
            self._reported_s = time.monotonic()
            self._channel.send({"alive": True})


_this: Rank | None = None
"""The rank that this process is."""


def tell_alive() -> None:
    """Say that this process's rank goes on; nothing where it is none."""
    if _this is not None:
        _this.tell_alive()


@dataclass(frozen=True, slots=True)
class RankOutputs:
    """Where a rank writes: its channel to the server, and its files in the world's folder."""

    rank: int
    channel: Channel
    folder: Path

    @property
    def trace_file(self) -> Path:
        """Where faulthandler writes the rank's stack."""
        return self.folder / f"trace-{self.rank}"

    @property
    def output_file(self) -> Path:
        """What the rank prints."""
        return self.folder / f"output-{self.rank}"

    def place_in_trace(self) -> tuple[str, bool]:
        """The frame in the rank's stack, and whether the innermost is in torch.distributed.

        The frame is the outermost one in torch's collectives, else the innermost.
        """
        try:
            text = self.trace_file.read_text(errors="replace")
        except OSError:
            return "", False
        stack = frames(text)
        if not stack:
            return "", False
        collective = [frame for frame in stack if C10D in frame[0]]
        innermost = stack[0][0]
        waits = "/torch/distributed/" in innermost or innermost.endswith(WAITING_FILE)
        return frame_text(collective[-1] if collective else stack[0]), waits


def load_function(spec: str) -> Callable[..., Any]:
    """The function that "package.module:name" or "/path/file.py:name" names.

    :raises ValueError: for another text.
    :raises ImportError: where the module cannot be imported.
    :raises AttributeError: where it has no such name.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ValueError(f"{spec!r} names no function: write package.module:name or file.py:name")
    module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    function: Callable[..., Any] = getattr(module, name)
    return function


def load_file(place: str) -> ModuleType:
    """The module of a file outside of packages, imported once in a process; raises ImportError."""
    module_name = f"portagpu_ranks_{Path(place).stem}"
    known = sys.modules.get(module_name)
    if known is not None and known.__file__ == place:
        return known
    found = importlib.util.spec_from_file_location(module_name, place)
    if found is None or found.loader is None:
        raise ImportError(f"{place} cannot be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[module_name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        # the next one who asks gets the error too
        del sys.modules[module_name]
        raise
    return module


def run_rank(request: dict[str, Any], outputs: RankOutputs, server: int, control: Channel) -> None:
    """Run the request's function as one rank, report to the server, and end the process."""
    code = 1
    try:
        os.setpgid(0, 0)
        # a rank must not outlive the server, however the server ends
        die_with_parent()
        if os.getppid() != server:
            os._exit(code)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # as in every process of Python: a write to a rank that is gone is an error, and no death
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        _redirect(outputs, control)
        trace = outputs.trace_file.open("w")
        faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
        faulthandler.enable(file=trace, all_threads=False)
        _run_function(request, outputs)
        outputs.channel.send({"done": True, "compiler": COMPILER in sys.modules})
        code = 0
    except BaseException as error:  # noqa: BLE001 - whatever a rank raises is its outcome
        with contextlib.suppress(Exception):
            reason = f"raised {error_line(error)}"[:2000]
            frames = traceback.extract_tb(error.__traceback__)
            waiting = any(
                C10D in frame.filename or frame.filename.endswith(WAITING_FILE) for frame in frames
            )
            outputs.channel.send({"raised": reason, "in_collective": waiting})
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(outputs: RankOutputs, control: Channel) -> None:
    """Put what the rank prints into its file; keep it away from the server's own channel."""
    control.close()
    output = os.open(outputs.output_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # a rank that is killed has no chance to flush
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _run_function(request: dict[str, Any], outputs: RankOutputs) -> None:
    import torch
    import torch.distributed as dist

    from portagpu.devices.registry import VARIABLE, select

    world = int(request["world"])
    os.environ.update({"RANK": str(outputs.rank), "LOCAL_RANK": str(outputs.rank)})
    os.environ.update({"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)})
    if world > 1:
        # ranks that share the cores must not each start a thread for every core
        share = max(1, len(os.sched_getaffinity(0)) // world)
        # which is fewer than that where OMP_NUM_THREADS says so
        torch.set_num_threads(min(share, torch.get_num_threads()))
    if request["backend"]:
        # the rank's default too: what it calls without a handle must not end up elsewhere
        os.environ[VARIABLE] = request["backend"]
    gpu = select(request["indices"][outputs.rank])
    os.environ.update(gpu.comm.local_env or {})
    if request["group"]:
        # the server ends ranks that hang, and knows which of them wait for a CPU
        most_s = PATIENCE.most_times * (request["most_s"] + request["start_s"])
        # torch re-exports FileStore with a star, which its type stubs do not show
        store = dist.FileStore(str(outputs.folder / "store"))  # type: ignore[attr-defined]
        dist.init_process_group(
            gpu.comm.init_string,
            store=store,
            rank=outputs.rank,
            world_size=world,
            timeout=timedelta(seconds=most_s),
            device_id=gpu.comm.device_id,
        )
        # a connection counts as made where only one side has seen it: one that closes its group at
        # once ends the other's init with "connectFullMesh failed ... Connection closed by peer"
        # (gloo/transport/tcp: the initiator waits for its own write alone, and Pair::connect
        # raises what its loop has read since, here the end of the connection)
        _wait_for_all(store, "joined", outputs.rank, range(world))
    outputs.channel.send({"ready": True})
    function = load_function(request["function"])
    global _this
    _this = me = Rank(outputs.rank, world, gpu, outputs.channel)
    value = function(me, **request["arguments"])
    try:
        outputs.channel.send({"value": value})
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{request['function']} returned what JSON cannot hold ({error}): return numbers, "
            "strings, lists and dicts"
        ) from None
    if request["group"]:
        # a rank that left early would close connections that others still make or use; the server
        # ends those that wait in vain
        stay = [rank for rank in range(world) if rank not in request["lost"]]
        _wait_for_all(store, "returned", outputs.rank, stay)
        if not request["lost"] and not me.broke_group:
            # what a lost rank left unfinished would be waited for
            dist.destroy_process_group()


def _wait_for_all(store: Any, what: str, me: int, ranks: Iterable[int]) -> None:
    """Say that this rank has done ``what``, and wait for those: the server limits the time."""
    store.set(f"portagpu/{what}/{me}", "")
    store.wait([f"portagpu/{what}/{rank}" for rank in ranks], timedelta(days=1))
