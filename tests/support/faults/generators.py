"""Faults of random number generators."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from portagpu_cpu.backend import CpuBackend
from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

Draws = dict[str, tuple[Any, str]]
DRAWS: Draws = {
    "rand": (torch, "rand"),
    "randn": (torch, "randn"),
    "randint": (torch, "randint"),
    "bernoulli": (torch, "bernoulli"),
    "randperm": (torch, "randperm"),
    "uniform_": (torch.Tensor, "uniform_"),
    "exponential_": (torch.Tensor, "exponential_"),
}

REGIONS: dict[str, Any] = {
    "everywhere": lambda found, named: True,
    "of more than 64": lambda found, named: found.numel() > 64,
    "of an odd size": lambda found, named: found.numel() % 2 == 1 and found.numel() > 16,
    "of a size that 1000 divides": lambda found, named: found.numel() % 1000 == 0,
    "from a generator of one's own": lambda found, named: _own(named),
    "from the default generator": lambda found, named: not _own(named),
    "in half precision": lambda found, named: found.dtype == torch.float16,
    "in float64": lambda found, named: found.dtype == torch.float64,
    "of a strided tensor": lambda found, named: not found.is_contiguous(),
}


def _own(named: dict[str, Any]) -> bool:
    given = named.get("generator")
    return given is not None and given is not torch.default_generator


def _rewind(good: Any, region: Any, *given: Any, **named: Any) -> Any:
    """The draw does not advance its generator."""
    generator = named.get("generator") or torch.default_generator
    state = generator.get_state()
    found = good(*given, **named)
    if region(found, named):
        generator.set_state(state)
    return found


def _twice(good: Any, region: Any, *given: Any, **named: Any) -> Any:
    """The numbers of the second half are those of the first."""
    found = good(*given, **named)
    half = found.numel() // 2
    if region(found, named) and half > 16:
        flat = found if found.dim() == 1 else found.flatten()
        flat[half : 2 * half] = flat[:half].clone()
    return found


def _fresh(good: Any, region: Any, *given: Any, **named: Any) -> Any:
    """Numbers that no seed repeats."""
    found = good(*given, **named)
    if region(found, named) and found.numel() > 1:
        found.copy_(found[torch.tensor(_orders(found.numel()))])
    return found


_COUNT = [0]


def _orders(n: int) -> list[int]:
    """Another rotation at each call."""
    _COUNT[0] += 1
    first = _COUNT[0] % n
    return [*range(first, n), *range(first)]


def _tail(good: Any, region: Any, *given: Any, **named: Any) -> Any:
    """The last element is not written."""
    found = good(*given, **named)
    if region(found, named) and found.numel():
        found[-1] = 9
    return found


def _upper_end(good: Any, region: Any, *given: Any, **named: Any) -> Any:
    """The first number is the upper end, which is not allowed."""
    found = good(*given, **named)
    if region(found, named) and found.numel():
        found[0] = max(13, found.numel())
    return found


WRONGS = {
    "does not advance": _rewind,
    "repeats its first half": _twice,
    "is not repeated by the seed": _fresh,
    "leaves the last element": _tail,
    "gives the upper end": _upper_end,
}


def _lower_half(good: Any, self: Any, value: int) -> Any:
    return good(self, value % 2**16)


def _odd_only(good: Any, self: Any, value: int) -> Any:
    return good(self, value | 1)


def _nothing(good: Any, *given: Any, **named: Any) -> Any:
    del good, given, named


def _plus_one(good: Any, self: Any, value: int) -> Any:
    return good(self, value + 1 if value < 2**63 - 1 else value)


def _draws_once(good: Any, self: Any, *given: Any) -> Any:
    found = good(self, *given)
    torch.rand(1)
    return found


SEEDING = {
    "takes 16 bits": _lower_half,
    "takes odd seeds alone": _odd_only,
    "does nothing": _nothing,
    "adds one": _plus_one,
    "draws one number": _draws_once,
}


def faults() -> list[Fault]:
    """All of them."""
    found = [
        Fault("generators", f"{draw}: {where}: {wrong}", _applied(*DRAWS[draw], region, change))
        for draw, (where, region), (wrong, change) in product(
            DRAWS, REGIONS.items(), WRONGS.items()
        )
        if not _equivalent(draw, where, wrong)
    ]
    found += [
        Fault(
            "generators", f"manual_seed: of the device: {wrong}", _of_backend("manual_seed", change)
        )
        for wrong, change in SEEDING.items()
    ]
    found += [
        Fault(
            "generators",
            f"set_rng_state: of the device: {wrong}",
            _of_backend("set_rng_state", change),
        )
        for wrong, change in {"does nothing": _nothing, "draws one number": _draws_once}.items()
    ]
    return found


def _equivalent(draw: str, where: str, wrong: str) -> bool:
    """Whether nothing could show it: whole numbers have no such dtype, and factories no strides."""
    whole = draw in ("randint", "randperm")
    strided = where == "of a strided tensor"
    return (
        (whole and where in ("in half precision", "in float64"))
        or (strided and draw != "uniform_")
        # its numbers have no end, or may have it
        or (wrong == "gives the upper end" and draw in ("exponential_", "randn"))
        or (wrong == "leaves the last element" and draw in ("exponential_", "randn", "randint"))
    )


def _applied(place: Any, name: str, region: Any, change: Any) -> Callable[[], Any]:
    def faulty(good: Any, *given: Any, **named: Any) -> Any:
        return change(good, region, *given, **named)

    return lambda: replaced(place, name, faulty)


def _of_backend(name: str, change: Any) -> Callable[[], Any]:
    return lambda: replaced(CpuBackend, name, change)
