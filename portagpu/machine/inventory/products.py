"""Which product a GPU is, by everything that its sources state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.facts.targets import identify, named_product

if TYPE_CHECKING:
    from portagpu.facts.targets import Target
    from portagpu.machine.inventory.gpu import Gpu


def product_target(gpu: Gpu) -> Target | None:
    """The target of the whole GPU; partitions that are missing make it no other product.

    By architecture and name, and by the name alone where no source states an architecture, as many
    tools print none. Memory and units, where they are stated, have to be the product's. Raises
    TargetError where a file of the matrix is wrong.
    """
    memory, units = (None, None) if gpu.parts else (gpu.memory_bytes, gpu.unit_count)
    if gpu.arch is not None:
        return identify(gpu.vendor, gpu.arch, gpu.name, memory, units)
    named = named_product(gpu.vendor, None, gpu.name)
    found = identify(named.vendor, named.arch.name, gpu.name, memory, units) if named else None
    return found if found is named else None


def falls_short(target: Target, memory_bytes: int | None, unit_count: int | None) -> bool:
    """Whether a device with the product's name has less memory or fewer units than the product.

    An equal share of a product of several chiplets is a partition, and no fault.
    """
    chiplets = target.value("exec.chiplet_count") or 1
    shares = [each for each in range(2, chiplets + 1) if chiplets % each == 0]
    sizes = (
        (memory_bytes, target.match.memory_bytes),
        (unit_count, target.match.unit_count),
    )
    known = [(value, least) for value, (least, _) in _known_pairs(sizes)]
    if all(value >= least for value, least in known):
        return False
    return not any(
        all(least <= share * value <= most for value, (least, most) in _known_pairs(sizes))
        for share in shares
    )


def _known_pairs(
    sizes: tuple[tuple[int | None, tuple[int, int] | None], ...],
) -> list[tuple[int, tuple[int, int]]]:
    return [(value, bounds) for value, bounds in sizes if value is not None and bounds is not None]
