"""What every rank of a step of several nodes runs: an all_reduce, checked and timed. Needs torch.

Source of the bus bandwidth: :mod:`portagpu.facts.nccl_tests.model`, as nccl-tests defines it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.base.stats import mad
from portagpu.facts.nccl_tests.model import algbw_gbs, bus_factor
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Evidence, Verdict
from portagpu.runs.results.wording import exactly
from portagpu.suites.collectives import ranks as library
from portagpu.suites.collectives.ranks import Exchange, compare, expected, inputs_of
from portagpu.suites.performance.cases import SUITE
from portagpu.suites.performance.timing import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.devices.contract import Backend
    from portagpu.runs.results.run import Run

OPERATION: Final = "all_reduce"
SIZES: Final = (1 << 20, 64 << 20)
"""Bytes: the first is checked element by element, both are timed."""
_REPEATS: Final = 10


def all_reduce(run: Run, gpu: Backend, sizes: Sequence[int] = SIZES) -> Run | None:
    """Join the ranks, check and time an all_reduce, and leave; returns ``run`` on rank 0.

    The time of a call is that of the slowest rank. Raises what ``gpu.comm.init`` raises.
    """
    with gpu.comm.init(timeout_s=120.0, collective_timeout_s=120.0) as world:
        rank, ranks = world.rank, world.world_size
        hosts = list(dict.fromkeys(each.host for each in world.members))
        versions = {**run.info.versions, "comm": gpu.comm.library}
        devices = ({"name": gpu.name, "arch": gpu.arch.name},)
        run.info = replace(run.info, backend=gpu.plugin.name, versions=versions, devices=devices)
        shown = (
            "all ranks were on one machine: nothing went over a network" if len(hosts) == 1 else ""
        )
        run.add(_checked(gpu, rank, ranks, sizes[0], shown))
        for size in sizes:
            run.add(_timed(gpu, rank, ranks, size, shown))
    return run if rank == 0 else None


def _checked(gpu: Backend, rank: int, ranks: int, size: int, shown: str) -> Result:
    exchange = _buffers(gpu, rank, ranks, size)
    inputs = inputs_of(exchange, "exact")
    exchange.fill(inputs.sent(rank))
    library.perform(exchange)
    gpu.synchronize()
    wrong, sentence = compare(exchange, expected(exchange, inputs))
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, (wrong, sentence))
    problem = next((each for count, each in found if count), "")
    blamed = next((f"rank {number}" for number, (count, _) in enumerate(found) if count), None)
    return Result(
        id=f"verify/{OPERATION}/float32/{exchange.count}[{ranks}]",
        suite="collectives",
        area="collectives",
        verdict=Verdict.FAIL if problem else Verdict.PASS,
        reason=problem,
        device=blamed,
        evidence=(Evidence.EXECUTED,),
        value=sum(count for count, _ in found),
        unit="1",
        expected=exactly(0, "the sum of what the ranks sent, which is exact in float32"),
        shape=_shape(exchange, size, ranks),
        does_not_show=shown,
    )


def _timed(gpu: Backend, rank: int, ranks: int, size: int, shown: str) -> Result:
    exchange = _buffers(gpu, rank, ranks, size)
    exchange.clear()
    stopwatch = Stopwatch(gpu)
    call = partial(library.perform, exchange)
    samples = []
    for _ in range(_REPEATS + 1):
        # over the host: all begin together
        dist.all_reduce(torch.zeros(1))
        slowest = torch.tensor([stopwatch.time(call, 1)], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        samples.append(float(slowest))
    # the first call makes connections and takes memory
    factor = bus_factor(OPERATION, ranks) or 1.0
    rates = [algbw_gbs(size, seconds) * factor for seconds in samples[1:]]
    return Result(
        id=f"collectives/{OPERATION}[{ranks}-{size >> 20}MiB]",
        suite=SUITE,
        area="collectives",
        verdict=Verdict.UNVERIFIED,
        reason="compared with the other pairs and groups of the fleet run",
        evidence=(Evidence.EXECUTED,),
        value=median(rates),
        unit="GB/s",
        statistic="median",
        n=len(rates),
        spread=mad(rates),
        shape=_shape(exchange, size, ranks),
        does_not_show=shown,
    )


def _buffers(gpu: Backend, rank: int, ranks: int, size: int) -> Exchange:
    count = size // torch.float32.itemsize
    return Exchange.make(
        OPERATION, "sum", "in_place", count, torch.float32, gpu.device, rank, ranks
    )


def _shape(exchange: Exchange, size: int, ranks: int) -> dict[str, int | str]:
    return {
        "operation": OPERATION, "dtype": "float32", "count": exchange.count, "bytes": size,
        "ranks": ranks,
    }  # fmt: skip
