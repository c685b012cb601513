"""Errors of the host's memory, from the counters of its memory controllers.

Files: Linux ``Documentation/ABI/testing/sysfs-devices-edac``. A kernel without a driver for the
memory controller, and most virtual machines, have none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from portagpu.facts.host.tree import Tree

_CONTROLLERS: Final = "sys/devices/system/edac/mc"


@dataclass(frozen=True, slots=True)
class Dimm:
    """A memory module; ``label`` is the board's name of its slot where the kernel knows it."""

    label: str
    corrected: int | None
    uncorrected: int | None


@dataclass(frozen=True, slots=True)
class MemoryController:
    """Errors since the counters began, when the driver was loaded; None is unknown.

    The counts include errors of unknown modules.
    """

    name: str
    corrected: int | None
    uncorrected: int | None
    dimms: tuple[Dimm, ...]


def read_memory_controllers(tree: Tree) -> tuple[MemoryController, ...]:
    """Every memory controller that counts its errors."""
    return tuple(
        MemoryController(
            name=name,
            corrected=tree.integer(f"{_CONTROLLERS}/{name}/ce_count"),
            uncorrected=tree.integer(f"{_CONTROLLERS}/{name}/ue_count"),
            dimms=_dimms(tree, f"{_CONTROLLERS}/{name}"),
        )
        for name in tree.names(_CONTROLLERS, r"mc\d+")
    )


def _dimms(tree: Tree, controller: str) -> tuple[Dimm, ...]:
    return tuple(
        Dimm(
            label=tree.text(f"{controller}/{name}/dimm_label")
            or tree.text(f"{controller}/{name}/dimm_location")
            or name,
            corrected=tree.integer(f"{controller}/{name}/dimm_ce_count"),
            uncorrected=tree.integer(f"{controller}/{name}/dimm_ue_count"),
        )
        for name in tree.names(controller, r"(?:dimm|rank)\d+")
    )
