"""What ranks send, and what they must receive. Needs torch.

Any rank computes what every other one sends, from the rank's number. Three kinds of values:

- "bits", for operations that only move data: every pattern of bits, NaN among them;
- "exact", for reductions: values whose result is the same in every order and grouping. Integers use
  their whole range and wrap. Floats are whole numbers whose sums stay within the significand,
  signed powers of two for a product, and multiples of the number of ranks for an average;
- "random", for sums and averages of floats: normal numbers. The result of any order is within
  ``k * u / (1 - k * u) * sum(abs(x))`` of the sum in float64, with the unit roundoff u and k
  additions: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2.
  An average has two roundings more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

REDOPS: Final = ("sum", "prod", "max", "min", "avg")
"""As nccl-tests names them."""

_SCALED_RANKS: Final = 4
"""How many ranks multiply by other numbers than 1 and -1, so that no product overflows."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The values of one call: ``sent(r)`` is what rank r sends, of ``length`` elements."""

    dtype: torch.dtype
    world: int
    length: int
    redop: str
    """One of ``REDOPS``; empty for an operation that only moves data."""
    kind: str
    """ "bits", "exact" or "random"."""
    seed: int

    def sent(self, rank: int) -> torch.Tensor:
        """What ``rank`` sends, on the CPU."""
        random = torch.Generator().manual_seed(self.seed * 65537 + rank)
        if self.kind == "bits":
            shape = (self.length * self.dtype.itemsize,)
            return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random).view(
                self.dtype
            )
        if not self.dtype.is_floating_point:
            return self._whole(random)
        if self.kind == "random" or self.redop in ("max", "min"):
            found = torch.randn(self.length, dtype=torch.float64, generator=random).to(self.dtype)
            # a zero has two signs, and which is larger is not defined
            return torch.where(found.to(torch.float64) == 0, torch.ones_like(found), found)
        if self.redop == "prod":
            most = 1 if rank < _SCALED_RANKS else 0
            power = torch.randint(-most, most + 1, (self.length,), generator=random)
            sign = 1 - 2 * torch.randint(0, 2, (self.length,), generator=random)
            return (sign * 2.0 ** power.to(torch.float64)).to(self.dtype)
        most, step = _most_whole(self.dtype) // self.world, 1
        if self.redop == "avg":
            most, step = most // self.world, self.world
        found = torch.randint(-most, most + 1, (self.length,), generator=random) * step
        return found.to(torch.float64).to(self.dtype)

    def _whole(self, random: torch.Generator) -> torch.Tensor:
        info = torch.iinfo(self.dtype)
        low, high = max(info.min, -(1 << 62)), min(info.max, 1 << 62)
        found = torch.randint(low, high + 1, (self.length,), dtype=torch.int64, generator=random)
        return found.to(self.dtype)

    def reduced(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the values of all ranks reduce to, and how far a result may be from it.

        The bound is None where the result must have the same bits; otherwise both are float64.
        """
        wide = torch.float64 if self.dtype.is_floating_point else torch.int64
        total = self.sent(0).to(wide)
        sizes = total.abs()
        for rank in range(1, self.world):
            each = self.sent(rank).to(wide)
            sizes += each.abs()
            if self.redop == "prod":
                total *= each
            elif self.redop in ("max", "min"):
                total = (torch.maximum if self.redop == "max" else torch.minimum)(total, each)
            else:
                total += each
        if self.redop == "avg":
            total, sizes = total / self.world, sizes / self.world
        if self.kind == "exact":
            return total.to(self.dtype), None
        return total, self._bound(sizes)

    def _bound(self, sizes: torch.Tensor) -> torch.Tensor:
        info = torch.finfo(self.dtype)
        additions = self.world - 1 + (2 if self.redop == "avg" else 0)
        product = additions * info.eps / 2
        share = product / (1 - product) if product < 1 else math.inf
        # the sum in float64 is rounded as well
        own = self.world * torch.finfo(torch.float64).eps
        return (share + own) * sizes + info.smallest_normal * info.eps


def kinds(dtype: torch.dtype, redop: str, world: int) -> tuple[str, ...]:
    """The kinds of values to send in turn; empty where ``redop`` has no meaning for ``dtype``."""
    if not redop:
        return ("bits",)
    if not dtype.is_floating_point:
        # what an average of integers is rounded to is each library's own choice
        return () if redop == "avg" else ("exact",)
    if redop != "avg":
        return ("exact", "random") if redop == "sum" else ("exact",)
    # a factor of 1 / world is exact for powers of two alone
    exact = world & (world - 1) == 0 and _most_whole(dtype) // world**2 > 0
    return ("exact", "random") if exact else ("random",)


def _most_whole(dtype: torch.dtype) -> int:
    """Every whole number up to this one is a number of ``dtype``."""
    return int(2 / torch.finfo(dtype).eps)


def first_wrong(
    found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | None
) -> tuple[int, int, str, str]:
    """(how many elements are wrong, index of the first, its value, what it should be)."""
    if bound is None:
        bits = found.contiguous().view(torch.uint8) != expected.contiguous().view(torch.uint8)
        differs = bits.view(-1, found.dtype.itemsize).any(dim=1)
    else:
        # a NaN is within no bound
        differs = ~((found.to(torch.float64) - expected).abs() <= bound)
    count = int(differs.sum())
    if not count:
        return 0, 0, "", ""
    at = int(differs.nonzero()[0])
    right = _number(expected[at])
    if bound is not None:
        right += f" within {float(bound[at]):.3g}"
    return count, at, _number(found[at]), right


def _number(value: torch.Tensor) -> str:
    plain = value.item()
    if not isinstance(plain, float):
        return str(plain)
    # values that only differ in bits, as NaN do, are told by these
    text = f"{plain:.9g}" if value.dtype != torch.float64 else repr(plain)
    if math.isfinite(plain):
        return text
    data = value.reshape(1).view(torch.uint8).tolist()
    return f"{text} (bits {bytes(reversed(data)).hex()})"
