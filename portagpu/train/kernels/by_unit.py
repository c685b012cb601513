"""The matrix product that records the hardware unit of each tile; needs torch and Triton."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.train.kernels.ops import check_dtype, load_kernel, place_of
from portagpu.train.kernels.plan import BY_UNIT, all_configs, candidates, kind_by_unit, name_of

if TYPE_CHECKING:
    import torch

    from portagpu.devices.machine_code import UnitReading


@dataclass(frozen=True, slots=True)
class ByUnit:
    """Copies of a product, and the unit of each of their tiles.

    :param results: The copies, float32, or int32 of int8; shape (copies, m, n).
    :param units: The words that ``UnitReading.name`` takes, int64, shape (copies, rows of tiles,
        columns of tiles); zeros without a reading.
    :param tile: The rows and columns of a tile.
    """

    results: torch.Tensor
    units: torch.Tensor
    tile: tuple[int, int]


def copies_for(a: torch.Tensor, b: torch.Tensor, tiles: int, *, max_bytes: int) -> int:
    """How many copies of ``a @ b`` have at least that many tiles.

    :param a: shape (m, k)
    :param b: shape (k, n)
    :param tiles: how many tiles all copies have together
    :param max_bytes: how large all copies are together at most; one may be larger
    """
    config = all_configs(kind_by_unit(name_of(a.dtype)))[0]
    m, n = a.shape[0], b.shape[1]
    each = -(-m // config.block("BLOCK_M")) * -(-n // config.block("BLOCK_N"))
    return max(1, min(-(-tiles // each), max_bytes // (4 * m * n)))


def product_by_unit(
    a: torch.Tensor,
    b: torch.Tensor,
    reading: UnitReading | None,
    *,
    copies: int = 1,
    shift: int = 0,
) -> ByUnit:
    """``a @ b`` several times in one launch, with the hardware unit of each tile.

    Sums are in float32 with all bits of float32 operands, or in int32. Each tile of each copy is
    one program, so that enough copies reach every unit of a device.

    :param a: shape (m, k), neither 0; fp16, bf16, fp32 or int8; any strides
    :param b: shape (k, n), n not 0; the dtype of ``a``; any strides
    :param reading: how the device reads its unit; None records none, as in Triton's interpreter
    :param copies: how often the product is computed, from 1
    :param shift: how far the order of the tiles is moved, from 0
    :returns: the copies, and the units of their tiles
    :raises ValueError: for other tensors
    :raises Unsupported: where Triton cannot run
    """
    import torch

    place = place_of(a, b)
    name = check_dtype(a, BY_UNIT)
    if b.dtype is not a.dtype:
        raise ValueError(f"b is {b.dtype}; it must be {a.dtype}, as a is")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise ValueError(
            f"{tuple(a.shape)} @ {tuple(b.shape)} must be (m, k) @ (k, n), without a 0"
        )
    (m, k), n = a.shape, b.shape[1]
    config = candidates(kind_by_unit(name), place.limits)[0]
    tile = config.block("BLOCK_M"), config.block("BLOCK_N")
    language = importlib.import_module("triton.language")
    integers = name == "int8"
    kind = torch.int32 if integers else torch.float32
    # what no program writes is not a number, or as far from a product as int32 goes
    fill = torch.iinfo(kind).min if integers else torch.nan
    results = torch.full((copies, m, n), fill, dtype=kind, device=a.device)
    units = torch.zeros(
        (copies, -(-m // tile[0]), -(-n // tile[1])), dtype=torch.int64, device=a.device
    )
    with place.current():
        load_kernel("units", "product_by_unit_kernel")[(units.numel(),)](
            *(a, b, results, units, m, n, k, *a.stride(), *b.stride(), shift),
            ACCUMULATOR=language.int32 if integers else language.float32,
            READS=() if reading is None else reading.assembly,
            CONSTRAINT="" if reading is None else reading.constraint,
            **place.options(config, a.element_size()),
        )
    return ByUnit(results, units, tile)
