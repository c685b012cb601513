"""The caches of a device by name and size, and which part of a curve over sizes each of them holds.

Sizes are of all caches of a level together: a measure keeps every unit busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.facts.host import Cache
    from portagpu.facts.targets import Target

MEMORY: Final = "memory"
"""What lies beyond the last cache."""
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20}
_OF_TARGETS: Final = (
    ("l1_per_unit", "L1", True),
    ("l2_total", "L2", False),
    ("memory_side_total", "memory-side cache", False),
)
"""(fact, name, whether there is one for each unit) of targets, from the nearest outwards."""


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """All caches of one level: ``size_bytes`` together."""

    name: str
    size_bytes: int


def levels_of_host(caches: Iterable[Cache]) -> list[CacheLevel]:
    """The levels that hold data, from the nearest outwards: "L1d", "L2", "L3"."""
    found: dict[tuple[int, str], int] = {}
    for each in sorted(caches, key=lambda cache: cache.level):
        if each.kind in ("data", "unified"):
            name = f"L{each.level}d" if each.kind == "data" else f"L{each.level}"
            key = (each.level, name)
            found[key] = found.get(key, 0) + each.size_bytes * each.instances
    return [CacheLevel(name, size) for (_, name), size in found.items()]


def levels_of_target(target: Target, units: int) -> list[CacheLevel]:
    """The levels that the target states; ``units`` is how many units the device has."""
    found = []
    for key, name, each_unit in _OF_TARGETS:
        fact = target.fact(f"cache.{key}")
        if fact is None or fact.unit not in _UNITS or not isinstance(fact.value, int | float):
            continue
        size = int(fact.value * _UNITS[fact.unit]) * (units if each_unit else 1)
        if size:
            found.append(CacheLevel(name, size))
    return found


def best_by_level(
    levels: Sequence[CacheLevel], working_sets: Sequence[float], values: Sequence[float]
) -> dict[str, float]:
    """The best value of each level: among working sets that it holds and the one before does not.

    Levels that no working set falls into are left out. ``MEMORY`` is beyond the last.
    """
    bounds = [0.0, *(float(level.size_bytes) for level in levels), float("inf")]
    names = [*(level.name for level in levels), MEMORY]
    found: dict[str, float] = {}
    for name, (above, most) in zip(names, pairwise(bounds), strict=True):
        inside = [
            value for size, value in zip(working_sets, values, strict=True) if above < size <= most
        ]
        if inside:
            found[name] = max(inside)
    return found
