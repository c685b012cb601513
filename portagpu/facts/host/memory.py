"""The machine's memory, from ``/proc/meminfo``."""

from __future__ import annotations

from dataclasses import dataclass

from portagpu.facts.host.tree import Tree, size_bytes, to_int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine (a container's limit is in Limits); None is unknown."""

    total_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    huge_pages_total: int | None
    huge_pages_free: int | None
    huge_page_size_bytes: int | None


def read_memory(tree: Tree) -> Memory:
    """Read ``/proc/meminfo``; a missing line is None."""
    lines = tree.fields("proc/meminfo")
    return Memory(
        total_bytes=size_bytes(lines.get("MemTotal")),
        available_bytes=size_bytes(lines.get("MemAvailable")),
        swap_total_bytes=size_bytes(lines.get("SwapTotal")),
        swap_free_bytes=size_bytes(lines.get("SwapFree")),
        huge_pages_total=to_int(lines.get("HugePages_Total")),
        huge_pages_free=to_int(lines.get("HugePages_Free")),
        huge_page_size_bytes=size_bytes(lines.get("Hugepagesize")),
    )
