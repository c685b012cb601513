"""What a probe is: work on a device that is made from a seed, run many times, and judged wholly.
Its integers come from a counter, the same on every device, host and version of torch.

torch's own generators are not the same: they depend on vector instructions and on the number of
units. The n-th draw is splitmix64's finaliser of ``key + n * GOLDEN`` (Steele, Lea and Flood, Fast
Splittable Pseudorandom Number Generators, OOPSLA 2014), in 64-bit integers that wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.judge import Wrong


_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_ROUNDS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST: Final = 31
_FEW: Final = 1 << 12
"""Values that 16 bits draw with nearly the same probability: within 1 in 16."""


def mix(value: int) -> int:
    """splitmix64's finaliser of one integer; the result has 64 bits."""
    value &= _MASK
    for shift, factor in _ROUNDS:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> _LAST)


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer, which is what torch takes."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """A logical shift to the right: torch's own copies the sign."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)


@dataclass(frozen=True, slots=True)
class Draws:
    """Random integers of one seed on one device; each name is a stream of its own.

    :param seed: Any integer.
    :param device: Where tensors are made.
    """

    seed: int
    device: torch.device | str = "cpu"

    def bits(self, stream: str, shape: Sequence[int]) -> torch.Tensor:
        """64 random bits an element, int64."""
        import torch

        key = mix(self.seed)
        for each in stream.encode():
            key = mix(key + each + 1)
        count = math.prod(shape)
        found = torch.arange(count, dtype=torch.int64, device=self.device)
        found.mul_(_signed(_GOLDEN)).add_(_signed(key))
        for shift, factor in _ROUNDS:
            found.bitwise_xor_(_shifted(found, shift)).mul_(_signed(factor))
        return found.bitwise_xor_(_shifted(found, _LAST)).reshape(tuple(shape))

    def integers(self, stream: str, shape: Sequence[int], low: int, high: int) -> torch.Tensor:
        """Integers from ``low`` to ``high``, both included, int64; at most 2**31 values.

        Up to 2**12 values take 16 bits each, four of one draw, the lowest first; others the upper
        32 bits of a draw.
        """
        import torch

        values, count = high - low + 1, math.prod(shape)
        if values <= _FEW:
            words = self.bits(stream, (-(-count // 4),)).view(torch.int16)[:count]
            found, kept = words.to(torch.int64).bitwise_and_(0xFFFF), 16
        else:
            found, kept = _shifted(self.bits(stream, (count,)), 32), 32
        return found.mul_(values).bitwise_right_shift_(kept).add_(low).reshape(tuple(shape))

    def odd(self, stream: str, shape: Sequence[int]) -> torch.Tensor:
        """Odd integers of 64 bits, int64."""
        return self.bits(stream, shape).bitwise_or_(1)

    def signed(self, stream: str, shape: Sequence[int], largest: int) -> torch.Tensor:
        """Integers of up to that magnitude, int64; from 2**30 on of exactly it one less."""
        if largest < 1 << 30:
            return self.integers(stream, shape, -largest, largest)
        # the upper bits of a draw, with its sign
        return self.bits(stream, shape) >> (63 - largest.bit_length())

    def toggling(self, stream: str, shape: tuple[int, int], largest: int) -> torch.Tensor:
        """Integers whose bits are 1010... and 0101... in turn both ways, int64; random signs.

        :param largest: 2**n - 1: they have n bits.
        """
        import torch

        rows, columns = (torch.arange(each, device=self.device) for each in shape)
        even = (rows.unsqueeze(1) + columns) % 2 == 0
        sizes = torch.where(even, largest // 3, largest - largest // 3)
        return sizes * (2 * self.integers(stream, shape, 0, 1) - 1)


class Work(Protocol):
    """The operands of a probe on a device."""

    @property
    def results(self) -> int:
        """How many results one run gives; all are judged."""

    @property
    def inputs(self) -> int:
        """How many elements its operands have."""

    def run(self) -> torch.Tensor:
        """Compute once, on the device's current stream."""

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The wrong elements; None where every element is right."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Work whose whole result is known: ``judge`` compares the bits of every element."""

    compute: Callable[[], torch.Tensor]
    expected: torch.Tensor
    """The right result, on the device."""
    inputs: int

    @property
    def results(self) -> int:
        """The number of elements of the result."""
        return self.expected.numel()

    def run(self) -> torch.Tensor:
        """Compute once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """The elements whose bits are not the expected ones."""
        from portagpu.train.exact.judge import differences

        return differences(result, self.expected)


@dataclass(frozen=True, slots=True)
class Probe:
    """One kind of work.

    :param name: ``area/dtype[variant]``, such as "products/bfloat16[thin]".
    :param dtype: torch's name of the dtype that it needs.
    :param make: Makes operands on a device; ``scale`` multiplies the number of results, and is 1
        for the digest. Raises NotExactError where the result could depend on an order.
    :param refuses: Why a device cannot run it; empty where it can.
    """

    name: str
    dtype: str
    make: Callable[[Backend, Draws, int], Work]
    refuses: Callable[[Backend], str]

    @property
    def area(self) -> str:
        """The part before the slash."""
        return self.name.partition("/")[0]
