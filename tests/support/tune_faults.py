"""What ranks run in the tests of tune: the sweep with one thing broken, or one thing fast."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from portagpu.devices.collectives import algorithms as library
from portagpu.suites.collectives import tune_ranks

_right = library.perform
_NAP_S = 300.0


def _sweep(perform: Any, rank: Any, arguments: dict[str, Any]) -> Any:
    library.perform = perform
    return tune_ranks.sweep(rank, **arguments)


def drops_a_bit_in_chunks(rank: Any, **arguments: Any) -> Any:
    def perform(operation: str, way: str, task: Any) -> None:
        _right(operation, way, task)
        if way == "chunks-2" and rank.rank == 1 and task.output.numel() > 5:
            task.output.view(torch.uint8)[5 * task.output.itemsize] ^= 1

    return _sweep(perform, rank, arguments)


def refuses_int32(rank: Any, **arguments: Any) -> Any:
    def perform(operation: str, way: str, task: Any) -> None:
        if task.output.dtype is torch.int32:
            raise RuntimeError("no\nint32 today")
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def refuses_chunks(rank: Any, **arguments: Any) -> Any:
    def perform(operation: str, way: str, task: Any) -> None:
        if way.startswith("chunks"):
            raise RuntimeError("no chunks today")
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def is_slow_by_default(rank: Any, **arguments: Any) -> Any:
    """The library's own call takes 20 ms longer, always."""

    def perform(operation: str, way: str, task: Any) -> None:
        if way == library.DEFAULT:
            time.sleep(0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def is_slow_at_first(rank: Any, **arguments: Any) -> Any:
    """The library's own call takes 20 ms longer until the race is over."""
    slow = True
    repeat = tune_ranks._Race.repeat

    def repeated(self: Any, *limits: Any) -> None:
        nonlocal slow
        slow = False
        repeat(self, *limits)

    def perform(operation: str, way: str, task: Any) -> None:
        # what is not the default is slow afterwards
        if slow == (way == library.DEFAULT):
            time.sleep(0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    tune_ranks._Race.repeat = repeated  # type: ignore[method-assign]
    return _sweep(perform, rank, arguments)


def is_fast_with_the_variable(rank: Any, **arguments: Any) -> Any:
    """20 ms longer, but for the settings of the test's table."""

    def perform(operation: str, way: str, task: Any) -> None:
        if os.environ.get("ACME_ALGORITHM") != "Ring":
            time.sleep(0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def is_slow_with_the_variable(rank: Any, **arguments: Any) -> Any:
    def perform(operation: str, way: str, task: Any) -> None:
        if os.environ.get("ACME_ALGORITHM") == "Ring":
            time.sleep(0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def is_fast_once_with_the_variable(rank: Any, **arguments: Any) -> Any:
    """Faster with the settings at first, and slower where these are measured again.

    Of two sizes only the larger one is faster at first, and the smaller one is slower by far, so
    that the larger one is measured again alone.
    """
    again = arguments["ways"] and len(arguments["points"]) == 1
    ring = os.environ.get("ACME_ALGORITHM") == "Ring"

    def perform(operation: str, way: str, task: Any) -> None:
        if task.output.nbytes < 4096:
            time.sleep(0.04 if ring else 0.02)  # allowed: slowness is the fault
        elif ring == bool(again):
            time.sleep(0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def is_wrong_with_the_variable(rank: Any, **arguments: Any) -> Any:
    def perform(operation: str, way: str, task: Any) -> None:
        _right(operation, way, task)
        if os.environ.get("ACME_ALGORITHM") == "Ring" and rank.rank == 1:
            task.output.view(torch.uint8)[0] ^= 1

    return _sweep(perform, rank, arguments)


def dies_when_repeated_with_the_variable(rank: Any, **arguments: Any) -> Any:
    """Fast with the settings, but where they are measured again rank 1 dies."""
    again = arguments["ways"] and len(arguments["points"]) == 1
    if again and os.environ.get("ACME_ALGORITHM") == "Ring" and rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def perform(operation: str, way: str, task: Any) -> None:
        # the smaller of two sizes is slower with them, so that only the other is repeated
        with_settings = os.environ.get("ACME_ALGORITHM") == "Ring"
        if not with_settings or task.output.nbytes < 4096:
            time.sleep(0.04 if with_settings else 0.02)  # allowed: slowness is the fault
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def _late(what: Any, rank: Any, arguments: dict[str, Any]) -> Any:
    calls = 0

    def perform(operation: str, way: str, task: Any) -> None:
        nonlocal calls
        calls += 1
        if rank.rank == 1 and calls == 5:
            what()
        _right(operation, way, task)

    return _sweep(perform, rank, arguments)


def rank_1_dies(rank: Any, **arguments: Any) -> Any:
    return _late(lambda: os.kill(os.getpid(), signal.SIGKILL), rank, arguments)


def rank_1_stops(rank: Any, **arguments: Any) -> Any:
    return _late(lambda: os.kill(os.getpid(), signal.SIGSTOP), rank, arguments)


def rank_1_never_comes(rank: Any, **arguments: Any) -> Any:
    if rank.rank == 1:
        time.sleep(_NAP_S)
    return tune_ranks.sweep(rank, **arguments)


def rank_1_raises(rank: Any, **arguments: Any) -> Any:
    def raise_() -> None:
        raise KeyError("lost its way")

    return _late(raise_, rank, arguments)


# what users' ranks do with a profile


def every_way(rank: Any) -> list[list[Any]]:
    """[operation, way, whether it is what the library's own call leaves] for odd sizes."""
    found = []
    for operation, ways in library.WAYS.items():
        for numel in (1, 7, 4096):
            wanted = _result(rank, operation, library.DEFAULT, numel)
            for way in ways:
                got = _result(rank, operation, way, numel)
                found.append([operation, way, numel, torch.equal(got, wanted)])
    return found


def _result(rank: Any, operation: str, way: str, numel: int) -> torch.Tensor:
    world = rank.world
    mine = torch.arange(numel, dtype=torch.float32) * (rank.rank + 1)
    whole = torch.arange(numel * world, dtype=torch.float32) * (rank.rank + 1)
    if operation == "all_gather":
        task = library.Task(output=torch.zeros_like(whole), input=mine)
    elif operation == "reduce_scatter":
        task = library.Task(output=torch.zeros_like(mine), input=whole)
    else:
        task = library.Task(output=mine, input=mine, tensors=mine.chunk(3), root=world - 1)
    _right(operation, way, task)
    return task.output


def with_a_profile(rank: Any, path: str) -> dict[str, Any]:
    """Calls of a tuned group of all ranks but the first, and of all."""
    import torch.distributed as dist

    comm = rank.gpu.comm
    others = dist.new_group([1, 2])
    answers: dict[str, Any] = {}
    if rank.rank:
        tuned = comm.tuned(path, others)
        mine = float(rank.rank)

        def line(count: int, scale: float = mine) -> torch.Tensor:
            return scale * torch.arange(count, dtype=torch.float32)

        total = 3.0 * torch.arange(1024, dtype=torch.float32)
        answers["ways"] = [
            tuned.way(name, 4096)
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        ]
        answers["outside"] = tuned.way("all_reduce", 1 << 30)
        answers["dtype"] = tuned.way("all_reduce", 4096, torch.bfloat16)
        tensor = line(1024)
        blocking = tuned.all_reduce(tensor)
        answers["blocking"] = [blocking is None, torch.equal(tensor, total)]
        tensor = line(1024)
        work = tuned.all_reduce(tensor, async_op=True)
        waiting = work.is_completed()
        answers["async"] = [waiting, work.wait(), work.is_completed(), torch.equal(tensor, total)]
        tensor = line(1024)
        tuned.all_reduce(tensor, op=dist.ReduceOp.MAX)
        answers["max"] = torch.equal(tensor, line(1024, 2.0))
        tensor = line(2048).view(2, 1024).t()
        strided = tensor.clone(memory_format=torch.contiguous_format)
        tuned.all_reduce(strided)
        answers["shape"] = torch.equal(strided, line(2048, 3.0).view(2, 1024).t())
        whole = torch.zeros(1024)
        tuned.all_gather_into_tensor(whole, line(512))
        answers["gathered"] = torch.equal(whole, torch.cat([line(512, 1.0), line(512, 2.0)]))
        share = torch.zeros(512)
        tuned.reduce_scatter_tensor(share, line(1024))
        answers["scattered"] = torch.equal(share, total[512 * (rank.rank - 1) :][:512])
        tensor = line(1024)
        tuned.broadcast(tensor, group_src=1)
        answers["sent"] = torch.equal(tensor, line(1024, 2.0))
        many = [line(100), line(924), torch.full((3, 5), mine)]
        tuned.all_reduce_many(many)
        answers["many"] = all(
            torch.equal(each, right)
            for each, right in zip(
                many, [line(100, 3.0), line(924, 3.0), torch.full((3, 5), 3.0)], strict=True
            )
        )
        tuned.all_reduce_many([])
    try:
        comm.tuned(path)
    except ValueError as error:
        answers["world"] = str(error)
    return answers


def trains(rank: Any, path: str) -> list[list[float]]:
    """The gradients of one step of DDP, without and with the profile's hook."""
    from torch.nn.parallel import DistributedDataParallel

    found = []
    for hook in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
        ddp = DistributedDataParallel(model)
        if hook:
            tuned = rank.gpu.comm.tuned(path)
            ddp.register_comm_hook(None, tuned.comm_hook)
        ddp(torch.full((4, 64), float(1 + rank.rank))).sum().backward()
        grad = model[0].weight.grad
        assert grad is not None
        found.append([float(each) for each in grad.view(-1)])
    return found
