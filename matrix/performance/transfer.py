"""Bandwidth between the host's memory and the device's, each way, pageable and page-locked.

The bytes of the buffer are counted once. On a device whose memory is the host's, such as a CPU,
no link is crossed: it is a copy from host memory to host memory, and the results say so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import Absent, BenchCase, cache_sentence, large_array_bytes
from portagpu.bench.timing import Effort
from portagpu.results.verdicts import Verdict

if TYPE_CHECKING:
    import torch

    from portagpu.bench.device import MeasuredDevice
    from portagpu.target import Target
    from portagpu.world import Rank

METRICS: Final = ("transfer/h2d", "transfer/d2h")

_SEED: Final = 20240302
_MIB: Final = 1 << 20
_LARGEST: Final = 512 * _MIB


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Each direction from pageable and from page-locked memory, over several sizes."""
    del world, target
    largest = min(large_array_bytes(device, arrays=2), _LARGEST)
    steps = (64, 8, 1) if effort is Effort.QUICK else (1024, 256, 64, 16, 4, 2, 1)
    sizes = sorted({max(largest // step, 64 << 10) for step in steps})
    return [
        _case(device, metric, memory, sizes)
        for metric in METRICS
        for memory in ("pageable", "pinned")
    ]


def _case(device: MeasuredDevice, metric: str, memory: str, sizes: list[int]) -> BenchCase:
    absent = None
    if memory == "pinned" and "pinned-memory" not in device.capabilities:
        absent = Absent(
            Verdict.SKIP, f"the {device.backend} backend claims no page-locked host memory"
        )
    limits = [cache_sentence(device, sizes[-1])]
    if device.shared:
        limits.insert(0, "a link: both ends are host memory, so this is a host-to-host copy")
    return BenchCase(
        id=f"{metric}[{memory}]",
        metric=metric,
        area="transfer",
        unit="GB/s",
        function="transfer",
        arguments={
            "direction": metric.removeprefix("transfer/"),
            "pinned": memory == "pinned",
            "sizes": sizes,
        },
        algorithm=memory,
        shape={"bytes": sizes[-1]},
        axis="transfer size",
        counts="the bytes of the buffer, once",
        checks="every byte",
        does_not_show="; ".join(limit for limit in limits if limit),
        absent=absent,
    )


def transfer(
    rank: Rank, *, effort: str, direction: str, pinned: bool, sizes: list[int]
) -> dict[str, Any]:
    """Time copies of each of ``sizes`` bytes, and check what arrived."""
    import torch

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    generator = torch.Generator().manual_seed(_SEED)
    words = torch.empty(-(-max(sizes) // 8), dtype=torch.int64).random_(generator=generator)
    host = words.view(torch.uint8)
    near = rank.gpu.pin(host) if pinned else host
    far = near.to(rank.gpu.device, copy=True)
    for size in sizes:
        rank.step(f"timing {direction} of {size} bytes")
        source, arrived = near[:size], far[:size]
        if direction == "d2h":
            source, arrived = arrived, source
        # the other end keeps the random bytes, so that a copy that does nothing shows
        arrived.bitwise_not_()
        call = partial(move, arrived, source, pinned)
        timing = measure(stopwatch, call, PACES[Effort(effort)])
        rank.gpu.synchronize()
        if wrong := first_wrong(arrived, source):
            reading.reject(f"{direction} of {size} bytes: {wrong}")
            break
        reading.keep(timing, x=size, work=size)
    return reading.to_json()


def move(to: torch.Tensor, what: torch.Tensor, pinned: bool) -> None:
    """One copy of ``what`` into ``to``."""
    to.copy_(what, non_blocking=pinned)


def first_wrong(found: torch.Tensor, expected: torch.Tensor) -> str:
    """A sentence about the first byte that differs; empty if none does."""
    differs = found.cpu() != expected.cpu()
    if not bool(differs.any()):
        return ""
    index = int(differs.nonzero()[0])
    return f"byte {index} is {int(found[index])} instead of {int(expected[index])}"
