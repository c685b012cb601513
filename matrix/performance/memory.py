"""Bandwidth of the device's own memory: copy and triad, over arrays beyond the last-level cache.

Bytes are counted as STREAM counts them (https://www.cs.virginia.edu/stream/ref.html): what the
operation reads and what it writes, without what a cache fetches to write. 1 GB is 1e9 bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import BenchCase, cache_sentence, large_array_bytes
from portagpu.bench.timing import Effort

if TYPE_CHECKING:
    import torch

    from portagpu.bench.device import MeasuredDevice
    from portagpu.target import Target
    from portagpu.world import Rank

METRICS: Final = ("memory/copy", "memory/triad")

_SEED: Final = 20240301
_SCALAR: Final = 3.0
_ARRAYS: Final = {"copy": 2, "triad": 3}
"""Arrays that one call reads or writes."""
_COUNTS: Final = {
    "copy": "a = b: 1 array read and 1 written, 8 bytes for each float32 element",
    "triad": "a = b + 3 c: 2 arrays read and 1 written, 12 bytes for each float32 element",
}
_BLOCK: Final = 1 << 20
_VALUES: Final = 1 << 20
"""Values are four times a whole number below this, so that b + 3 c is a multiple of 4 below 2**24
and exact in float32."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Copy and triad, each over several sizes; the value is that of the largest."""
    del world, target
    largest = large_array_bytes(device, 3, effort)
    steps = (64, 8, 1) if effort is Effort.QUICK else (256, 64, 16, 8, 4, 2, 1)
    sizes = sorted({max(largest // step, 4 * _BLOCK) for step in steps})
    return [
        BenchCase(
            id=metric,
            metric=metric,
            area="memory",
            unit="GB/s",
            function="stream",
            arguments={"operation": metric.removeprefix("memory/"), "sizes": sizes},
            algorithm="stream",
            shape={"array_bytes": sizes[-1], "dtype": "fp32"},
            axis="array size",
            counts=_COUNTS[metric.removeprefix("memory/")],
            checks="every element, bit for bit",
            does_not_show=cache_sentence(device, sizes[-1]),
        )
        for metric in METRICS
    ]


def stream(rank: Rank, *, effort: str, operation: str, sizes: list[int]) -> dict[str, Any]:
    """Time ``operation`` over arrays of each of ``sizes`` bytes, and check the result."""
    import torch

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    count = max(sizes) // 4
    first = whole_numbers(rank.gpu.device, count, _SEED)
    second = whole_numbers(rank.gpu.device, count, _SEED + 1) if operation == "triad" else first
    written = torch.empty(count, device=rank.gpu.device)
    for size in sizes:
        rank.step(f"timing {operation} of {size} bytes")
        a, b, c = (whole[: size // 4] for whole in (written, first, second))
        a.fill_(float("nan"))
        call = partial(apply, operation, a, b, c)
        timing = measure(stopwatch, call, PACES[Effort(effort)])
        if wrong := first_wrong(operation, a, b, c):
            reading.reject(f"{operation} of {size} bytes: {wrong}")
            break
        reading.keep(timing, x=size, work=_ARRAYS[operation] * size)
    return reading.to_json()


def apply(operation: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """One call of ``operation``, which writes ``a``."""
    import torch

    if operation == "copy":
        a.copy_(b)
    else:
        torch.add(b, c, alpha=_SCALAR, out=a)


def whole_numbers(device: torch.device, count: int, seed: int) -> torch.Tensor:
    """``count`` random multiples of 4 as float32; every block is different."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    block = torch.randint(
        0, _VALUES, (min(_BLOCK, count),), dtype=torch.int32, generator=generator, device=device
    )
    blocks = -(-count // block.numel())
    values = torch.empty((blocks, block.numel()), device=device)
    # random numbers for every element would take longer than the measure
    for index in range(blocks):
        values[index] = 4 * (block.roll(index * 7919) ^ (index & 0xFFFF))
    return values.flatten()[:count]


def first_wrong(operation: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    """A sentence about the first wrong element of ``a``; empty if all are right."""
    import torch

    for start in range(0, a.numel(), 8 * _BLOCK):
        part = slice(start, start + 8 * _BLOCK)
        # in whole numbers, so that the reference shares no arithmetic with what is checked
        expected = b[part].to(torch.int32)
        if operation == "triad":
            expected = expected + int(_SCALAR) * c[part].to(torch.int32)
        differs = a[part] != expected
        if bool(differs.any()):
            index = int(differs.nonzero()[0])
            found, right = float(a[part][index]), float(expected[index])
            return f"element {start + index} is {found:g} instead of {right:g}"
    return ""
