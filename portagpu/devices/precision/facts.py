"""The support of number formats, from a target's facts."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from portagpu.devices.precision.levels import EVERYWHERE, Arithmetic, Recipe, Support
from portagpu.devices.precision.model import Fp8, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from portagpu.facts.targets import Target


def precision_from_facts(
    target: Target | None, deterministic_env: Mapping[str, str] = MappingProxyType({})
) -> Precision:
    """The support of each dtype on a GPU, from the facts of its target or architecture.

    Without a fact a 16-bit format is emulated, and fp8 is storage: torch computes in and stores
    them everywhere. Imports torch.
    """
    import torch

    deterministic_env = MappingProxyType(dict(deterministic_env))
    pairs = {
        "ocp": Fp8(torch.float8_e4m3fn, torch.float8_e5m2),
        "fnuz": Fp8(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    }
    halves = {"fp16": torch.float16, "bf16": torch.bfloat16}
    pair = None
    if target is not None and _has_arithmetic(target, "fp8"):
        pair = pairs.get(target.value("matrix.fp8_flavour"))
    native = (pair.e4m3, pair.e5m2) if pair is not None else ()
    table = dict.fromkeys((getattr(torch, name) for name in EVERYWHERE), Support.NATIVE)
    for name, dtype in halves.items():
        stated = target is not None and _has_arithmetic(target, name)
        table[dtype] = Support.NATIVE if stated else Support.EMULATED
    for each in pairs.values():
        for dtype in (each.e4m3, each.e5m2):
            table[dtype] = Support.NATIVE if dtype in native else Support.STORAGE
    if target is None:
        return Precision(MappingProxyType(table), deterministic_env=deterministic_env)
    flushes = target.value("matrix.flushes_subnormals") or ()
    return Precision(
        MappingProxyType(table),
        pair,
        recipes=frozenset(Recipe(each) for each in target.value("matrix.scaled_recipes") or ()),
        tf32=_tf32(target),
        alignment=_alignment(target, halves if pair is None else {**halves, "fp8": pair.e4m3}),
        flushes=frozenset(halves[each] for each in flushes if each in halves),
        deterministic_env=deterministic_env,
    )


def _tf32(target: Target) -> Arithmetic:
    """The arithmetic for TF32 in torch: the matrix unit's own, or its library's emulation."""
    if {"tf32", "xf32"} & set(target.value("matrix.dtypes") or ()):
        return Arithmetic.TF32
    return Arithmetic(target.value("matrix.tf32_emulation") or Arithmetic.IEEE)


def _alignment(target: Target, named: Mapping[str, torch.dtype]) -> Mapping[torch.dtype, int]:
    """The longest side of one matrix instruction, by dtype."""
    tiles = {dtype: target.value(f"matrix.tile.{name}") for name, dtype in named.items()}
    return MappingProxyType(
        {dtype: max(map(int, tile.split("x"))) for dtype, tile in tiles.items() if tile}
    )


def _has_arithmetic(target: Target, dtype: str) -> bool:
    """Whether facts state arithmetic in ``dtype`` for the matrix or vector unit."""
    if dtype in (target.value("matrix.dtypes") or ()) or target.peak(dtype) is not None:
        return True
    return target.fact(f"vector.rate.{dtype}") is not None
