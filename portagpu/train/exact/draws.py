"""Integers from a counter, the same on every device, host and version of torch.

torch's own generators are not the same: they depend on vector instructions and on the number of
units. The n-th draw is splitmix64's finaliser of ``key + n * GOLDEN`` (Steele, Lea and Flood, Fast
Splittable Pseudorandom Number Generators, OOPSLA 2014), in 64-bit integers that wrap.

The seeds of a screen are the same on every device on one day, and others on the next.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

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


def campaign_of(moment: datetime | None = None) -> int:
    """The number of a day in UTC, such as 20261201; today's without ``moment``."""
    return int(f"{moment or datetime.now(UTC):%Y%m%d}")


def batch_seed(campaign: int, probe: str, batch: int) -> int:
    """The seed of a batch of operands, below 2**64.

    :param campaign: The number that all devices have in common, by default that of the day.
    :param probe: The name of the probe.
    :param batch: The number of the batch, from 0.
    """
    base = hashlib.sha256(f"{campaign}\0{probe}".encode()).digest()[:8]
    return mix(int.from_bytes(base, "little") + batch)
