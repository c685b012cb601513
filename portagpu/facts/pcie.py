"""What a lane of PCI Express carries, by generation."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATION: Final[Mapping[float, int]] = MappingProxyType(
    {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
)
"""Generation by transfer rate in GT/s (PCI Express Base Specification)."""

LANE_GB_S: Final[Mapping[int, float]] = MappingProxyType(
    {
        1: 2.5 * 8 / 10 / 8,
        2: 5.0 * 8 / 10 / 8,
        3: 8.0 * 128 / 130 / 8,
        4: 16.0 * 128 / 130 / 8,
        5: 32.0 * 128 / 130 / 8,
    }
)
"""GB/s of one lane in one direction: transfer rate x line code / 8 (PCI Express Base
Specification). From generation 6 on the overhead of the FLIT mode is not one number: absent."""


def link_bytes_s(rate_gt_s: float | None, lanes: int | None) -> float | None:
    """Bytes a second that a link carries one way; None where one of its figures is not known."""
    if rate_gt_s is None or not lanes:
        return None
    lane = LANE_GB_S.get(GENERATION.get(rate_gt_s, 0))
    return None if lane is None else lane * lanes * 1e9
