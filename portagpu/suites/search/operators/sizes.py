"""Which samples of a pair run: some of torch's own, and some of other sizes.

Torch's generators of samples make nearly all of the sizes 3, 5, 10 and 20, which are constants of
its modules: with other constants they make others. Where sizes are written into a generator, a
sample is enlarged: each dimension of n > 1 becomes 2 n + 1.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.samples import changed, made, shown, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample

MOST_SAMPLES: Final = 4
ODD: Final[Mapping[str, int]] = {"S": 7, "M": 11, "L": 33}
"""Instead of 5, 10 and 20. Odd sizes leave a rest in every vector and block; the largest, and the
squares of the others, are more than the 32 lanes of a warp."""
LARGEST: Final = 2**12
"""Elements of an enlarged tensor at most: a sample takes milliseconds."""
_OWN_SIZES: Final = frozenset(("_segment_reduce", "histogramdd"))
"""Samples in which written lengths belong to the constants; torch checks no length of the first
where it is told to trust them (``unsafe``)."""


def samples(
    operator: Operator, dtype: Any, gradient: bool, half: int | None = None
) -> list[tuple[int, Sample, bool]]:
    """At most ``MOST_SAMPLES`` of the operator, with their numbers and whether they are torch's.

    Half of them are not, or more where torch has few. What the CPU refuses of those is no sample.
    With ``half`` 0 or 1 it is every second of each kind.
    """
    usual = made(operator, dtype, gradient)
    other = _others(operator, dtype, gradient, usual)
    count = min(len(other), max(MOST_SAMPLES // 2, MOST_SAMPLES - len(usual)))
    most = min(len(usual), MOST_SAMPLES - count)
    first = [round(k * (len(usual) - 1) / max(1, most - 1)) for k in range(most)]
    places = [len(other) * (2 * k + 1) // (2 * count) for k in range(count)]
    every: list[tuple[int, Callable[[], Sample], bool]] = [
        *((number, partial(usual.__getitem__, number), True) for number in first),
        *((len(usual) + place, other[place], False) for place in places),
    ]
    return [(number, make(), own) for number, make, own in every[half :: 1 if half is None else 2]]


def _others(
    operator: Operator, dtype: Any, gradient: bool, usual: list[Sample]
) -> list[Callable[[], Sample]]:
    if operator.name in _OWN_SIZES:
        return []
    try:
        with _sizes(ODD):
            odd = made(operator, dtype, gradient)
    except Exception:  # noqa: BLE001 - torch's own, for a generator with constants of its own
        odd = []
    known = {*map(shown, usual)}
    odd = [each for each in odd if shown(each) not in known]
    if odd:
        return [partial(odd.__getitem__, number) for number in range(len(odd))]
    return [
        partial(enlarged, each, number)
        for number, each in enumerate(usual)
        if all(_may_grow(one, dtype) for one in tensors(each))
        and any(size > 1 for one in tensors(each) for size in one.shape)
    ]


@contextmanager
def _sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """A block in which torch's generators of samples have these constants."""
    before = [(each, name, getattr(each, name)) for each in _modules() for name in sizes]
    for module, name, _ in before:
        setattr(module, name, sizes[name])
    try:
        yield
    finally:
        for place in before:
            setattr(*place)


@cache
def _modules() -> list[Any]:
    """Those of torch's database that have all of its constants."""
    from torch.testing._internal.opinfo import core

    right = {name: getattr(core, name, None) for name in ODD}
    within = [each for name, each in sys.modules.items() if name.startswith("torch.testing.")]
    return [each for each in within if right.items() <= vars(each).items()]


def _may_grow(tensor: Any, dtype: Any) -> bool:
    """Not an index, whose values belong to sizes, and not too large."""
    import torch

    elements = 1
    for size in tensor.shape:
        elements *= _larger(size)
    return tensor.dtype == dtype and tensor.layout == torch.strided and elements <= LARGEST


def _larger(size: int) -> int:
    return 2 * size + 1 if size > 1 else size


def enlarged(sample: Sample, seed: int) -> Sample:
    """The sample with larger tensors, of numbers between two of its own."""
    import torch

    numbers = torch.Generator().manual_seed(seed)

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or not value.numel():
            return value
        shape = [_larger(size) for size in value.shape]
        some = [
            value.flatten()[torch.randint(0, value.numel(), shape, generator=numbers)]
            for _ in range(2)
        ]
        if not (value.is_floating_point() or value.is_complex()):
            return some[0]
        wide = torch.complex128 if value.is_complex() else torch.float64
        part = torch.rand(shape, generator=numbers, dtype=torch.float64)
        between = part * some[0].to(wide) + (1 - part) * some[1].to(wide)
        return between.to(value.dtype)

    return changed(sample, change)
