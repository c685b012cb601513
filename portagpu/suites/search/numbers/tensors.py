"""Tensors on the device with every layout, and what they hold afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import fp8_values, kind_of
from portagpu.suites.search.numbers.values import numbers, on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from portagpu.devices.contract import Backend

Shape = tuple[int, ...]
WRITABLE: Final = ("plain", "every second", "transposed", "offset", "rows apart")
LAYOUTS: Final = (*WRITABLE, "expanded", "overlapping")
"""How elements lie: row by row, every second one, column by column, from the fourth on, with three
unused elements between rows; one row for all (stride 0), and rows that begin one element apart."""
_BITS: Final = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@lru_cache(maxsize=1024)
def strides_of(shape: Shape, layout: str) -> tuple[tuple[int, ...], int, int]:
    """(strides, offset, elements of storage) of a layout."""
    sizes = list(shape)
    steps = [1] * len(shape)
    order = range(len(shape)) if layout == "transposed" else range(len(shape) - 1, -1, -1)
    step = 2 if layout == "every second" else 1
    for each in order:
        steps[each] = step
        step *= max(1, sizes[each]) + (3 if layout == "rows apart" and step == 1 else 0)
    if steps and layout in ("expanded", "overlapping"):
        steps[0] = 0 if layout == "expanded" else 1
    offset = {"offset": 3, "rows apart": 1}.get(layout, 0)
    last = sum((max(1, size) - 1) * step for size, step in zip(sizes, steps, strict=True))
    return tuple(steps), offset, offset + last + 3


@lru_cache(maxsize=1024)
def positions(shape: Shape, strides: tuple[int, ...], offset: int) -> tuple[int, ...]:
    """Where in the storage each element lies, row by row."""
    found = [offset]
    for size, step in zip(shape, strides, strict=True):
        found = [start + step * each for start in found for each in range(size)]
    return tuple(found)


@dataclass(slots=True)
class Placed:
    """A tensor on the device, its elements row by row, and the storage around them."""

    tensor: torch.Tensor
    values: list[Any]
    whole: torch.Tensor
    before: torch.Tensor
    where: tuple[int, ...]
    storage: tuple[Any, ...]

    def changed(self, written: bool = False) -> str:
        """What has changed of it, as a clause; ``written`` leaves out the elements themselves."""
        now, then = self.whole.cpu(), self.before
        if same_bits(now, then):
            return ""
        found, old = listed(now), listed(then)
        mine = set(self.where)
        for index, (new, former) in enumerate(zip(found, old, strict=True)):
            if str(new) == str(former) or (written and index in mine):
                continue
            which = (
                f"element {self.where.index(index)}" if index in mine else "a number between them"
            )
            return f"{which} became {new} and was {former}"
        return ""


def place(gpu: Backend, dtype: str, shape: Shape, layout: str, kind: str, seed: int) -> Placed:
    """A tensor of numbers of that class."""
    strides, offset, length = strides_of(shape, layout)
    host = on_host(dtype, kind, length, seed)
    storage = numbers(dtype, kind, length, seed)
    whole = host.clone().to(gpu.device)
    where = positions(shape, strides, offset)
    tensor = whole.as_strided(shape, strides, offset)
    return Placed(tensor, [storage[each] for each in where], whole, host, where, storage)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one dtype on the CPU have the same bits."""
    import torch

    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    bits = getattr(torch, _BITS[one.element_size()])
    return bool(torch.equal(one.view(bits), other.view(bits)))


def listed(tensor: torch.Tensor) -> list[Any]:
    """The elements row by row, as Python's numbers."""
    import torch

    flat = tensor.detach().cpu().reshape(-1)
    dtype = dtype_of(tensor)
    if kind_of(dtype) == "fp8":
        known = fp8_values(dtype)
        return [known[code] for code in flat.contiguous().view(torch.uint8).tolist()]
    found: list[Any] = flat.tolist()
    return found


def dtype_of(tensor: torch.Tensor) -> str:
    """The name of its dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def size_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    found = 1
    for each in shape:
        found *= each
    return found


@lru_cache(maxsize=1024)
def broadcast_index(shape: Shape, to: Shape) -> tuple[int, ...]:
    """For each element of ``to``, which one of ``shape`` it is, both row by row."""
    small = (1,) * (len(to) - len(shape)) + shape
    steps, step = [0] * len(small), 1
    for each in range(len(small) - 1, -1, -1):
        steps[each] = 0 if small[each] == 1 else step
        step *= small[each]
    return positions(to, tuple(steps), 0)


@lru_cache(maxsize=1024)
def rows(shape: Shape, dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The elements of each row over ``dims``, one row for each element of the other dimensions."""
    steps = strides_of(shape, "plain")[0]
    others = [each for each in range(len(shape)) if each not in dims]
    starts = positions(tuple(shape[d] for d in others), tuple(steps[d] for d in others), 0)
    sizes, strides = tuple(shape[d] for d in dims), tuple(steps[d] for d in dims)
    return tuple(positions(sizes, strides, start) for start in starts)
