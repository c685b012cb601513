"""What ranks run for :mod:`portagpu.suites.performance.load`. Needs torch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.performance import matmul
from portagpu.suites.performance.timing import (
    PACES,
    Effort,
    RankSamples,
    Sampler,
    Stopwatch,
    measure,
)

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank

_SEED: Final = 20240303
_BATCH_S: Final = 0.05
"""How long products run between two comparisons of bits."""


def _edge(gpu: Backend, size: int | None) -> int:
    if size is not None:
        return size
    return 512 if gpu.plugin.shared else 4096


def take_turns(
    rank: Rank, *, effort: str, dtype: str, size: int | None, rounds: int
) -> dict[str, Any]:
    """Measure the same product ``rounds`` times, one rank after the other, all others waiting."""
    import torch
    import torch.distributed as dist

    edge = _edge(rank.gpu, size)
    work = matmul.product(rank.gpu, dtype, edge, edge, edge, _SEED)
    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"shared": rank.gpu.plugin.shared, "shape": work.shape}
    matmul.poison(work)
    matmul.multiply(work)
    reading.reject(matmul.verify(work, _SEED))
    for round_ in range(rounds):
        for turn in range(rank.world):
            # over the host: it waits without load, which a barrier on the device need not
            dist.all_reduce(torch.zeros(1))
            if turn == rank.rank:
                rank.step(f"round {round_}")
                timing = measure(stopwatch, lambda: matmul.multiply(work), PACES[Effort(effort)])
                reading.keep(timing, work=work.operations)
    dist.all_reduce(torch.zeros(1))
    reading.reject(matmul.verify(work, _SEED))
    return reading.to_json()


def sustain(
    rank: Rank, *, seconds: float, interval_s: float, dtype: str, size: int | None
) -> dict[str, Any]:
    """Products for ``seconds``: throughput and telemetry of each interval, bits compared."""
    gpu = rank.gpu
    edge = _edge(gpu, size)
    work = matmul.product(gpu, dtype, edge, edge, edge, _SEED)
    answer: dict[str, Any] = {
        "device": str(gpu.device),
        "shape": work.shape,
        "throughput": [],
        "readings": [],
        "compared": 0,
        "wrong": "",
        "digest": "",
    }
    matmul.poison(work)
    matmul.multiply(work)
    if wrong := matmul.verify(work, _SEED):
        answer["wrong"], answer["digest"] = wrong
        return answer
    first = work.result.clone()
    stopwatch = Stopwatch(gpu)
    batches = _Batches(work, stopwatch)
    started = time.monotonic()
    with Sampler(gpu, interval_s) as sampler:
        while not answer["wrong"] and time.monotonic() - started < seconds:
            rate, compared, answer["wrong"] = _interval(work, first, batches, interval_s)
            answer["compared"] += compared
            elapsed = time.monotonic() - started
            answer["throughput"].append([elapsed, rate])
            telemetry = sampler.latest()
            if telemetry:
                answer["readings"].append({"t_s": elapsed, **telemetry})
            rank.step("interval", t_s=elapsed, tflops=rate, telemetry=telemetry)
    return answer


class _Batches:
    """Products in batches of about ``_BATCH_S``, also where their time changes on the way.

    A batch is at most twice the one before: a first product that was fast by luck commits a device
    that others slow down to no more than that.
    """

    def __init__(self, work: matmul.Product, stopwatch: Stopwatch) -> None:
        self._work = work
        self._stopwatch = stopwatch
        self._size = 1
        # where the clock stands still, a product is taken to last one step of it
        self._most = max(1, int(_BATCH_S / stopwatch.resolution_s))
        while self.run()[0] < _BATCH_S / 2 and self._size < self._most:
            pass

    def run(self) -> tuple[float, int]:
        """(seconds, products) of one batch."""
        size = self._size
        seconds = self._stopwatch.time(lambda: matmul.multiply(self._work), size)
        fits = int(size * _BATCH_S / max(seconds, self._stopwatch.resolution_s))
        self._size = min(max(1, fits), 2 * size, self._most)
        return seconds, size


def _interval(
    work: matmul.Product, first: Any, batches: _Batches, interval_s: float
) -> tuple[float, int, str]:
    """(TFLOPS, products compared, what was wrong) of batches for ``interval_s``."""
    busy, products, compared = 0.0, 0, 0
    started = time.monotonic()
    while not products or time.monotonic() - started < interval_s:
        matmul.poison(work)
        seconds, size = batches.run()
        busy += seconds
        products += size
        compared += 1
        differs = int((work.result != first).sum())
        if differs:
            wrong = (
                f"{differs} of {first.numel()} elements of a {work.dtype} product differ from the "
                "first product of the same operands"
            )
            return work.operations * products / busy / 1e12, compared, wrong
    return work.operations * products / busy / 1e12, compared, ""
