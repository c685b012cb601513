"""The limits of a device, from what torch reports of it and what its target states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.sizing.launch import Sizing

if TYPE_CHECKING:
    from portagpu.target import Target


def of_device(properties: Any, target: Target | None, warp_size: int) -> Sizing:
    """The limits of a GPU: what torch's ``properties`` report of it first, then the facts.

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
