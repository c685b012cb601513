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
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.timing import WrongValue

_SEED: Final = 20240303
_BATCH_S: Final = 0.2
"""How long the products of the same operands are timed. To make others and to judge takes a fifth
of the time on one core of a CPU, measured with fp32 and fp64 of 512."""
_KEPT_PART: Final = 1 / 8
"""Of the free memory, for the results of a batch."""
_SHARED_BYTES: Final = 64 << 20
"""The same on a device that is the host itself, whose memory is everybody's."""


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
    work = matmul.judged_product(rank.gpu, dtype, edge, edge, edge, _SEED)
    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    judged = matmul.judged_in_words(work)
    reading.notes = {"shared": rank.gpu.plugin.shared, "shape": work.shape, "judged": judged}
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
    """Products for ``seconds``, each of them judged; throughput and telemetry of each interval."""
    batches = _Batches(rank.gpu, dtype, _edge(rank.gpu, size))
    batches.warm_up()
    answer: dict[str, Any] = {
        "device": str(rank.gpu.device),
        "shape": batches.work.shape,
        "throughput": [],
        "readings": [],
    }
    started, busy_s = time.monotonic(), 0.0
    with Sampler(rank.gpu, interval_s) as sampler:
        while not batches.wrong and time.monotonic() - started < seconds:
            rate, measured_s = _interval(batches, interval_s)
            busy_s += measured_s
            elapsed = time.monotonic() - started
            answer["throughput"].append([elapsed, rate])
            telemetry = sampler.latest()
            if telemetry:
                answer["readings"].append({"t_s": elapsed, **telemetry})
            rank.step("interval", t_s=elapsed, tflops=rate, telemetry=telemetry)
    wrong = batches.wrong or matmul.RIGHT
    return answer | {
        "busy_s": busy_s,
        "compared": batches.judged,
        "batches": batches.number,
        "judged": matmul.judged_in_words(batches.work),
        "sampled": batches.work.sampled,
        "wrong": wrong.sentence,
        "digest": wrong.digest,
    }


class _Batches:
    """Products in batches of about ``_BATCH_S``, each batch with operands of its own.

    The first product of a batch is judged, and the bits of all others are compared with it after
    they were timed: each has a result of its own. A batch is at most twice the one before: a first
    product that was fast by luck commits a device that others slow down to no more than that.
    """

    def __init__(self, gpu: Backend, dtype: str, edge: int) -> None:
        self._gpu, self._dtype, self._edge = gpu, dtype, edge
        self._stopwatch = Stopwatch(gpu)
        self.number = self.judged = 0
        self.wrong: WrongValue | None = None
        self.work = matmul.judged_product(gpu, dtype, edge, edge, edge, _SEED)
        self._results = self.work.result.unsqueeze(0)[:0]
        self._size = 1
        kept = _SHARED_BYTES if gpu.plugin.shared else gpu.mem_get_info()[0] * _KEPT_PART
        # where the clock stands still, a product is taken to last one step of it
        by_time = int(_BATCH_S / self._stopwatch.resolution_s)
        self._most = max(1, min(by_time, int(kept / self.work.result.nbytes)))

    def warm_up(self) -> None:
        """Batches until one is as long as it may be, or a product is wrong."""
        while not self.wrong and self.run()[0] < _BATCH_S / 2 and self._size < self._most:
            pass

    def run(self) -> tuple[float, int]:
        """(seconds, products) of one batch; ``wrong`` is what is wrong with them."""
        edge, size = self._edge, self._size
        seed = _SEED + self.number
        if self.number:
            # without the operands of the last batch
            del self.work
            self.work = matmul.judged_product(self._gpu, self._dtype, edge, edge, edge, seed)
        self.number += 1
        matmul.poison(self.work)
        matmul.multiply(self.work)
        self.judged += 1
        self.wrong = matmul.verify(self.work, seed)
        if self.wrong:
            return 0.0, 0
        right, results = self.work.result, self._results_of(size)
        turns = iter(results)

        def multiply() -> None:
            self.work.result = next(turns)
            matmul.multiply(self.work)

        seconds = self._stopwatch.time(multiply, size)
        self.work.result = right
        self.judged += size
        self.wrong = matmul.first_difference(self.work, results)
        fits = int(size * _BATCH_S / max(seconds, self._stopwatch.resolution_s))
        self._size = min(max(1, fits), 2 * size, self._most)
        return seconds, size

    def _results_of(self, size: int) -> torch.Tensor:
        """As many results, which hold those of other operands or what no product is."""
        if len(self._results) < size:
            kept = self.work.result
            self._results = kept.new_empty((0,))
            self._results = kept.new_empty((size, *kept.shape))
            self._results.fill_(matmul.no_product(kept))
        return self._results[:size]


def _interval(batches: _Batches, interval_s: float) -> tuple[float, float]:
    """(TFLOPS, seconds that were timed) of batches for ``interval_s``; fewer after a wrong one."""
    busy_s, products = 0.0, 0
    started = time.monotonic()
    while not batches.wrong and (not products or time.monotonic() - started < interval_s):
        seconds, size = batches.run()
        busy_s += seconds
        products += size
    return batches.work.operations * products / busy_s / 1e12 if busy_s else 0.0, busy_s
