"""Kinds of draws of random numbers, and what is wrong with numbers whatever the seed was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

BITS: Final = {"float32": 24, "float64": 53, "float16": 11, "bfloat16": 8}
"""Bits of a uniform number: ATen's uniform_real_distribution fills the significand."""
CHANCE: Final = 1e-12
"""The chance that a right device misses the bound of a mean."""
ENOUGH_BITS: Final = 96
"""This many random bits are not the same twice: 2**40 pairs agree with a chance of 2**-56."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How one kind of draw is made, and what its numbers must be.

    ``make(n, dtype, generator)`` gives n numbers on the generator's device. They lie in ``[low,
    high)``, or in ``[low, high]`` if ``closed``, and their mean is ``mean``. ``bits`` is the
    entropy of a number, None for that of its dtype.
    """

    make: Callable[[int, Any, torch.Generator], torch.Tensor]
    low: float
    high: float
    mean: float
    bits: float | None = None
    closed: bool = False
    positive: bool = False
    """Whether 0 is outside (docs of Tensor.exponential_: its "actual support" is (0, inf))."""
    deviation: float | None = None
    """The standard deviation of numbers without bounds, None for bounded ones."""


def _uniform_every_second(n: int, dtype: Any, generator: torch.Generator) -> torch.Tensor:
    """Numbers into every second element; the others have to stay 2."""
    import torch

    whole = torch.full((2 * n,), 2.0, dtype=dtype, device=generator.device)
    whole[::2].uniform_(generator=generator)
    if not bool((whole[1::2] == 2.0).all()):
        raise ValueError("uniform_ of every second element wrote into those between")
    return whole[::2].clone()


def _all_of(n: int, dtype: Any, generator: torch.Generator) -> torch.Tensor:
    """All of n numbers of one weight, drawn without replacement: each once."""
    import torch

    weights = torch.ones(n, dtype=dtype, device=generator.device)
    return torch.multinomial(weights, n, generator=generator) if n else weights.long()


@cache
def draws() -> dict[str, Draw]:
    """The kinds of draws."""
    import torch

    def place(dtype: Any, generator: torch.Generator) -> dict[str, Any]:
        return {"dtype": dtype, "device": generator.device, "generator": generator}

    def chances(n: int, dtype: Any, generator: torch.Generator) -> torch.Tensor:
        return torch.full((n,), 0.25, dtype=dtype, device=generator.device)

    return {
        "rand": Draw(lambda n, t, g: torch.rand(n, **place(t, g)), 0, 1, 0.5),
        "randn": Draw(
            lambda n, t, g: torch.randn(n, **place(t, g)), -40, 40, 0, bits=6, deviation=1
        ),
        "randint": Draw(
            lambda n, _, g: torch.randint(-3, 13, (n,), generator=g, device=g.device),
            -3,
            13,
            4.5,
            bits=4,
        ),
        "bernoulli": Draw(
            lambda n, t, g: torch.bernoulli(chances(n, t, g), generator=g),
            0,
            1,
            0.25,
            bits=0.8,
            closed=True,
        ),
        "randperm": Draw(
            lambda n, _, g: torch.randperm(n, generator=g, device=g.device),
            0,
            math.inf,
            math.nan,
            bits=1,
        ),
        "uniform_": Draw(_uniform_every_second, 0, 1, 0.5),
        "exponential_": Draw(
            lambda n, t, g: torch.empty(n, dtype=t, device=g.device).exponential_(generator=g),
            0,
            math.inf,
            1,
            bits=6,
            deviation=1,
            positive=True,
        ),
        "multinomial": Draw(_all_of, 0, math.inf, math.nan, bits=1),
    }


def repetition(values: torch.Tensor, bits: float) -> str:
    """Where numbers come again, in parts that are too long for chance; empty if nowhere."""
    import torch

    half = len(values) // 2
    if half * bits >= ENOUGH_BITS and torch.equal(values[:half], values[half : 2 * half]):
        return "has its first half again as its second"
    # a power of two, as the sizes at which kernels split their work
    length = 2 ** math.ceil(math.log2(ENOUGH_BITS / bits))
    parts = values[: len(values) // length * length].reshape(-1, length)
    first: dict[bytes, int] = {}
    for number, part in enumerate(parts.contiguous().view(torch.uint8).numpy()):
        before = first.setdefault(part.tobytes(), number)
        if before != number:
            end = length * (number + 1) - 1
            return f"has elements {length * number} to {end} again, as from {length * before}"
    return ""


def wrong_numbers(values: torch.Tensor, draw: Draw, n: int, dtype: str) -> str:
    """What is wrong with n numbers of that kind, whatever the seed; empty if nothing is."""
    if not n:
        return f"has {len(values)} numbers" if len(values) else ""
    if len(values) != n:
        return f"has {len(values)} numbers"
    low, high = float(values.min()), float(values.max())
    if math.isnan(draw.mean):
        missing = n - len(values.unique()) if low >= 0 and high < n else n
        return f"lacks {missing} of {n} numbers" if missing else ""
    if draw.positive and low <= 0:
        return f"has the number {low:g}, and none is 0 or below"
    if not (low >= draw.low and (high < draw.high or (draw.closed and high <= draw.high))):
        return f"has numbers from {low:g} to {high:g}, outside {draw.low:g} to {draw.high:g}"
    bound = _mean_bound(draw, n) + 2.0 ** -BITS[dtype]
    mean = float(values.mean())
    if abs(mean - draw.mean) > bound:
        return f"has the mean {mean:.4g} instead of {draw.mean:g} within {bound:.2g}"
    return ""


def _mean_bound(draw: Draw, n: int) -> float:
    """How far the mean of n numbers may be off, but for one time in 1 / CHANCE.

    Bounded numbers: Hoeffding, ``(high - low) sqrt(ln(2 / chance) / 2n)``. Others: Chebyshev would
    be useless, so the tail of a sum of n exponential numbers is taken for both, ``s (sqrt(2t / n) +
    t / n)`` with ``t = ln(2 / chance)`` (Boucheron, Lugosi, Massart: Concentration Inequalities,
    theorem 2.10, with v = n and c = 1).
    """
    t = math.log(2 / CHANCE)
    if draw.deviation is None:
        return (draw.high - draw.low) * math.sqrt(t / (2 * n))
    return draw.deviation * (math.sqrt(2 * t / n) + t / n)
