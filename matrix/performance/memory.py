"""Bandwidth of the device's own memory and of its caches, over sizes from a few KiB on.

Copy, scale, add and triad count bytes as STREAM does (https://www.cs.virginia.edu/stream/ref.html):
what the operation reads and what it writes, without what a cache fetches to write. Read is a sum,
write fills an array with one number. 1 GB is 1e9 bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.performance.cases import BenchCase, cache_sentence, large_array_bytes
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import WrongValue

_SEED: Final = 20240301
_SCALAR: Final = 3.0


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: how many arrays a call reads or writes, and operations for each element."""

    arrays: int
    flops: int
    counts: str


OPERATIONS: Final = {
    "copy": Operation(2, 0, "a = b: 1 array read and 1 written"),
    "scale": Operation(2, 1, "a = 3 b: 1 array read and 1 written"),
    "add": Operation(3, 1, "a = b + c: 2 arrays read and 1 written"),
    "triad": Operation(3, 2, "a = b + 3 c: 2 arrays read and 1 written"),
    "read": Operation(1, 1, "the sum of an array: 1 array read"),
    "write": Operation(1, 0, "a = 3: 1 array written"),
}
METRICS: Final = tuple(f"memory/{name}" for name in OPERATIONS)

_BLOCK: Final = 1 << 20
_VALUES: Final = 1 << 20
"""Values are four times a whole number below this, so that b + 3 c is a multiple of 4 below 2**24
and exact in float32."""
_ODD: Final = 1 << 7
"""What is summed are odd numbers of both signs below this. Their sums are exact in float32 in any
order while they stay below 2**24, and no element is zero."""
_ELEMENT_BYTES: Final = {"fp32": 4, "fp64": 8}
_MIN_BYTES: Final = 4 << 10
_CALL_SENTENCE: Final = (
    "a cache where a call takes only a few microseconds: there the call itself is most of the time"
)


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Each operation over sizes that show every cache; the value is that of the largest.

    Also each operation over the arrays that the target has an expectation for.
    """
    del world
    largest = large_array_bytes(device, 3, effort)
    step = 8 if effort is Effort.QUICK else 2
    sizes = [_MIN_BYTES]
    while sizes[-1] * step < largest:
        sizes.append(sizes[-1] * step)
    sizes.append(largest)
    found = []
    for name in OPERATIONS:
        found.append(_case(device, name, sizes, "fp32", _CALL_SENTENCE))
        for size, dtype in _stated_arrays(device, name, target):
            variant = f"[{dtype},{size >> 20}MiB]"
            found.append(_case(device, name, [size], dtype, variant=variant))
    return found


def _case(
    device: MeasuredDevice,
    name: str,
    sizes: list[int],
    dtype: str,
    limit: str = "",
    variant: str = "",
) -> BenchCase:
    operation = OPERATIONS[name]
    limits = (limit, cache_sentence(device, sizes[-1]))
    return BenchCase(
        id=f"memory/{name}{variant}",
        metric=f"memory/{name}",
        area="memory",
        unit="GB/s",
        function="stream",
        arguments={
            "operation": name,
            "sizes": sizes,
            "caches": [asdict(each) for each in device.caches],
            "dtype": dtype,
        },
        algorithm="stream",
        shape={"array_bytes": sizes[-1], "dtype": dtype},
        axis="array size" if len(sizes) > 1 else "",
        counts=f"{operation.counts}, {operation.arrays * _ELEMENT_BYTES[dtype]} bytes an element",
        checks="every element, bit for bit; of a sum, that it is exact",
        does_not_show="; ".join(limit for limit in limits if limit),
        time_factor=3.0,
    )


def _stated_arrays(
    device: MeasuredDevice, name: str, target: Target | None
) -> list[tuple[int, str]]:
    """Bytes and element type of the arrays that ``target`` has an expectation for, which fit."""
    expected = target.expectations(f"memory/{name}") if target is not None else ()
    stated = {
        (each.size_bytes, each.dtype): None
        for each in expected
        if each.size_bytes is not None and each.dtype in _ELEMENT_BYTES
    }
    # two operands, the result, and what the check needs
    free = device.free_bytes
    return [(size, str(dtype)) for size, dtype in stated if free is None or 5 * size <= free]


def stream(
    rank: Rank,
    *,
    effort: str,
    operation: str,
    sizes: list[int],
    caches: list[dict[str, Any]],
    dtype: str = "fp32",
) -> dict[str, Any]:
    """Time ``operation`` over arrays of each of ``sizes`` bytes, and check the result."""
    import torch

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    counted = OPERATIONS[operation]
    reading.notes = {"seed": _SEED, "caches": caches, "arrays": counted.arrays}
    each_bytes, device = _ELEMENT_BYTES[dtype], rank.gpu.device
    count = max(sizes) // each_bytes
    kind = torch.float64 if dtype == "fp64" else torch.float32
    make = odd_numbers if operation == "read" else whole_numbers
    first = make(device, count, _SEED, kind)
    second = make(device, count, _SEED + 1, kind) if counted.arrays == 3 else first
    written = torch.empty(1 if operation == "read" else count, device=device, dtype=kind)
    for size in sizes:
        rank.step(f"timing {operation} of {size} bytes")
        a, b, c = (whole[: size // each_bytes] for whole in (written, first, second))
        a.fill_(float("nan"))
        call = partial(apply, operation, a, b, c)
        timing = measure(stopwatch, call, PACES[Effort(effort)])
        if wrong := first_wrong(operation, a, b, c):
            reading.reject(wrong, f"{operation} of {size} bytes")
            break
        moved = counted.arrays * size
        flops = counted.flops * (size // each_bytes) or None
        reading.keep(timing, x=size, work=moved, flops=flops, moved=moved)
    return reading.to_json()


def apply(operation: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """One call of ``operation``, which writes ``a``; of "read" that is one element."""
    import torch

    if operation == "copy":
        a.copy_(b)
    elif operation == "scale":
        torch.mul(b, _SCALAR, out=a)
    elif operation == "add":
        torch.add(b, c, out=a)
    elif operation == "triad":
        torch.add(b, c, alpha=_SCALAR, out=a)
    elif operation == "read":
        torch.sum(b, 0, keepdim=True, out=a)
    else:
        a.fill_(_SCALAR)


def whole_numbers(
    device: torch.device, count: int, seed: int, kind: torch.dtype | None = None
) -> torch.Tensor:
    """``count`` random multiples of 4, by default as float32; every block is different."""
    return _random_blocks(device, count, seed, kind, _VALUES, 0xFFFF, lambda block: 4 * block)


def odd_numbers(
    device: torch.device, count: int, seed: int, kind: torch.dtype | None = None
) -> torch.Tensor:
    """``count`` random odd numbers between -127 and 127; every block is different."""
    return _random_blocks(
        device, count, seed, kind, _ODD, _ODD - 1, lambda block: 2 * block - (_ODD - 1)
    )


def _random_blocks(
    device: torch.device,
    count: int,
    seed: int,
    kind: torch.dtype | None,
    values: int,
    mask: int,
    made_of: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """``made_of`` whole numbers below ``values``, of which a block changes the bits of ``mask``."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    block = torch.randint(
        0, values, (min(_BLOCK, count),), dtype=torch.int32, generator=generator, device=device
    )
    blocks = -(-count // block.numel())
    found = torch.empty((blocks, block.numel()), device=device, dtype=kind)
    # random numbers for every element would take longer than the measure
    for index in range(blocks):
        found[index] = made_of(block.roll(index * 7919) ^ (index & mask))
    return found.flatten()[:count]


def first_wrong(
    operation: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> WrongValue | None:
    """The first wrong element of ``a``, or its sum; None if all is right."""
    import torch

    from portagpu.suites.performance.timing import WrongValue
    from portagpu.train.exact.judge import differences

    if operation == "read":
        right = b.to(torch.int64).sum(0, keepdim=True)
        if (wrong := differences(a, right.to(a.dtype))) is None:
            return None
        sentence = f"the sum is {float(a[0]):.10g} instead of {int(right)}"
        return WrongValue(sentence, wrong.digest())
    for start in range(0, a.numel(), 8 * _BLOCK):
        part = slice(start, start + 8 * _BLOCK)
        expected = _expected(operation, b[part], c[part])
        # compared as numbers, which is cheaper; the bits are read where they differ
        if not bool((a[part] != expected).any()):
            continue
        if (wrong := differences(a[part], expected.to(a.dtype))) is not None:
            index = int(wrong.places[0])
            found, right_one = float(a[part][index]), float(expected[index])
            sentence = f"element {start + index} is {found:g} instead of {right_one:g}"
            return WrongValue(sentence, wrong.digest())
    return None


def _expected(operation: str, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """In whole numbers, so that the reference shares no arithmetic with what is checked."""
    import torch

    left, right = b.to(torch.int32), c.to(torch.int32)
    if operation == "write":
        return torch.full_like(left, int(_SCALAR))
    if operation == "add":
        return left + right
    if operation == "triad":
        return left + int(_SCALAR) * right
    return int(_SCALAR) * left if operation == "scale" else left
