"""Converts fp8 matrices from one flavour to the other, exactly once.

The bias of the FNUZ formats is one more than that of the OCP formats, so that the same byte is half
as large: a conversion keeps the bytes and doubles the scale. Not all bytes: 0x80 is minus zero in
one and NaN in the other, OCP's NaN and infinities are finite numbers in FNUZ, and FNUZ's largest
numbers are NaN and infinity in OCP. The dtype states the flavour of the data, so that a second
conversion, which would change the scale by 4, is an error.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.devices.precision.formats import FLAVOURS, FORMATS, Format
from portagpu.devices.precision.scaling import Scaled

if TYPE_CHECKING:
    import torch

_PART: Final = 1 << 20
"""Elements of one part of the conversion."""


class OnLoss(StrEnum):
    """The treatment of a value that the other flavour does not have."""

    RAISE = "raise"
    """OverflowError; it waits for the device."""
    SATURATE = "saturate"
    """The largest number, with its sign."""


def convert(scaled: Scaled, flavour: str, *, lossy: OnLoss | str = OnLoss.RAISE) -> Scaled:
    """``scaled`` with data of ``flavour`` ("ocp" or "fnuz"), of the same values.

    Exact: from OCP to FNUZ the scale doubles, back it halves; a scale of dtype float8_e8m0fnu
    becomes float32, which such scales have to be multiplied in. NaN stays NaN; minus zero becomes
    zero in FNUZ. ``lossy`` decides about values without a counterpart: infinities in FNUZ, and in
    OCP the largest numbers of FNUZ (240 in e4m3, above 28672 in e5m2). Raises ValueError for a
    matrix that is of ``flavour`` already: it was converted before, or its dtype is wrong. Raises
    OverflowError, which waits for the device, where float32 does not have the new scale.
    """
    import torch

    policy = OnLoss(lossy)
    if flavour not in FLAVOURS:
        raise ValueError(f"a flavour is {' or '.join(FLAVOURS)}, not {flavour!r}")
    if scaled.flavour == flavour:
        raise ValueError(f"the matrix is of flavour {flavour} already: convert it exactly once")
    name = str(scaled.data.dtype).removeprefix("torch.")
    target = FLAVOURS[flavour][FLAVOURS[scaled.flavour].index(name)]
    codes, lost = _tables(name, target)
    data = scaled.data.view(torch.uint8)
    found, count = _look_up(data, codes, lost if policy is OnLoss.RAISE else bytes(256))
    if count:
        raise OverflowError(
            f"{count} of {data.numel()} values of {name} do not exist in {target}: "
            "say lossy='saturate', or quantize again from the original"
        )
    factor = 2.0 if flavour == "fnuz" else 0.5
    before = scaled.scale.float()
    scale = before * factor
    if not bool((scale / factor == before).where(~before.isnan(), True).all()):
        raise OverflowError(
            f"{factor:g} times the scale is no float32: quantize again from the original"
        )
    return Scaled(found.view(getattr(torch, target)), scale, scaled.recipe, scaled.dim)


def _look_up(data: torch.Tensor, table: bytes, counted: bytes) -> tuple[torch.Tensor, int]:
    """``table[data]`` of the shape of ``data``, both uint8, and the sum of ``counted[data]``.

    In parts, because torch looks up with four bytes for an index.
    """
    import torch

    values, ones = (
        torch.tensor(list(each), dtype=torch.uint8, device=data.device) for each in (table, counted)
    )
    flat = data.reshape(-1)
    found = torch.empty_like(flat)
    indices = torch.empty(min(_PART, flat.numel()), dtype=torch.int32, device=data.device)
    sums = []
    for part, into in zip(flat.split(_PART), found.split(_PART), strict=True):
        index = indices[: part.numel()].copy_(part)
        if any(counted):
            sums.append(torch.index_select(ones, 0, index, out=into).sum(dtype=torch.int64))
        torch.index_select(values, 0, index, out=into)
    return found.view(data.shape), int(sum(sums))


@cache
def _tables(source: str, target: str) -> tuple[bytes, bytes]:
    """For each code of ``source``: the code of its value in ``target``, and whether it is lost.

    The value is halved in FNUZ and doubled in OCP. The scale compensates for that.
    """
    old, new = FORMATS[source], FORMATS[target]
    factor = 2.0 ** (old.bias - new.bias)
    by_value = {new.decode(code): code for code in reversed(range(256))}
    codes, lost = bytearray(), bytearray()
    for code in range(256):
        value = old.decode(code) * factor
        if math.isnan(value):
            found = new.nan_codes[0].start
        elif value == 0:
            found = code if new.has_minus_zero else 0
        else:
            found = by_value.get(value, by_value[math.copysign(new.max, value)])
        codes.append(found)
        lost.append(not _decodes_to(new, found, value))
    return bytes(codes), bytes(lost)


def _decodes_to(form: Format, code: int, value: float) -> bool:
    decoded = form.decode(code)
    return decoded == value or (math.isnan(decoded) and math.isnan(value))
