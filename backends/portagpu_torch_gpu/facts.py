"""From torch's device properties and a target's facts to what a backend describes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from portagpu.precision import EVERYWHERE, Arithmetic, Fp8, Precision, Recipe, Support
from portagpu.sizing import Sizing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.target import Target

_NATIVE: Final = tuple(getattr(torch, name) for name in EVERYWHERE)
_FP8: Final = MappingProxyType(
    {
        "ocp": Fp8(torch.float8_e4m3fn, torch.float8_e5m2),
        "fnuz": Fp8(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    }
)
_HALVES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}


def precision(
    target: Target | None, deterministic_env: Mapping[str, str] = MappingProxyType({})
) -> Precision:
    """What the device does with each dtype, as far as its target or architecture states it.

    A 16-bit format that no fact states is emulated, and fp8 that no fact states is storage: torch
    computes and keeps them everywhere, and only facts say where hardware does.
    """
    pair = None
    if target is not None and _states(target, "fp8"):
        pair = _FP8.get(target.value("matrix.fp8_flavour"))
    native = (pair.e4m3, pair.e5m2) if pair is not None else ()
    table = dict.fromkeys(_NATIVE, Support.NATIVE)
    for name, dtype in _HALVES.items():
        stated = target is not None and _states(target, name)
        table[dtype] = Support.NATIVE if stated else Support.EMULATED
    for each in _FP8.values():
        for dtype in (each.e4m3, each.e5m2):
            table[dtype] = Support.NATIVE if dtype in native else Support.STORAGE
    if target is None:
        return Precision(MappingProxyType(table), deterministic_env=deterministic_env)
    return Precision(
        MappingProxyType(table),
        pair,
        recipes=frozenset(Recipe(each) for each in target.value("matrix.scaled_recipes") or ()),
        tf32=_tf32(target),
        alignment=_alignment(target, pair),
        flushes=frozenset(
            _HALVES[each]
            for each in target.value("matrix.flushes_subnormals") or ()
            if each in _HALVES
        ),
        deterministic_env=deterministic_env,
    )


def _tf32(target: Target) -> Arithmetic:
    """What torch's request for TF32 runs in: the matrix unit's own, or its library's emulation."""
    if {"tf32", "xf32"} & set(target.value("matrix.dtypes") or ()):
        return Arithmetic.TF32
    return Arithmetic(target.value("matrix.tf32_emulation") or Arithmetic.IEEE)


def _alignment(target: Target, pair: Fp8 | None) -> Mapping[torch.dtype, int]:
    """The longest side of one matrix instruction, by dtype."""
    named = _HALVES if pair is None else {**_HALVES, "fp8": pair.e4m3}
    tiles = {dtype: target.value(f"matrix.tile.{name}") for name, dtype in named.items()}
    return MappingProxyType(
        {dtype: max(map(int, tile.split("x"))) for dtype, tile in tiles.items() if tile}
    )


def _states(target: Target, dtype: str) -> bool:
    """Whether a fact gives the hardware arithmetic in ``dtype``, in its matrix or vector unit."""
    if dtype in (target.value("matrix.dtypes") or ()) or target.peak(dtype) is not None:
        return True
    return target.fact(f"vector.rate.{dtype}") is not None


def sizing(properties: Any, target: Target | None, warp_size: int) -> Sizing:
    """The limits of a launch: what torch reports of the device first, then the facts.

    Where neither states the largest block, it is four warps, which every device runs; where no fact
    states how many blocks a unit holds, it is as many of those as its threads allow.
    """
    per_unit = _limit(properties, "max_threads_per_multi_processor", target, "max_threads_per_unit")
    block = _limit(properties, "max_threads_per_block", target, "max_threads_per_block")
    block = block or 4 * warp_size
    per_unit = per_unit or block
    blocks = target.value("exec.max_blocks_per_unit") if target is not None else None
    return Sizing(
        warp_size=warp_size,
        unit_count=properties.multi_processor_count,
        max_threads_per_block=block,
        max_threads_per_unit=per_unit,
        max_blocks_per_unit=blocks or max(1, per_unit // block),
        target=target,
    )


def _limit(properties: Any, name: str, target: Target | None, fact: str) -> int:
    reported: Any = getattr(properties, name, None)
    stated = target.value(f"exec.{fact}") if target is not None else None
    return int(reported or stated or 0)
