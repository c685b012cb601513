"""What the Python processes of a command say of themselves (``start/sitecustomize.py``)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One process that imported torch or has a rank."""

    pid: int
    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    torch: str | None = None
    """torch's version; None where it was not imported."""
    ended: bool = False
    """Whether it came to Python's exit handlers."""
    regions: int = 0
    """How many times a region was opened."""
    used_gpu: bool | None = None
    own_profiler: bool = False
    """Whether the program started torch's profiler itself."""
    scheduled: bool = False
    """Whether ``pg.profiling`` decided what is recorded."""
    worker: bool = False
    """Whether it is a helper that ends with its parent, such as a data loader's."""
    files: tuple[str, ...] = ()
    empty: bool = False
    """Whether torch's profiler recorded nothing in it."""
    problem: str = ""


def read_notes(folder: Path) -> tuple[Note, ...]:
    """The notes in ``folder``, by process; a damaged one is left out."""
    known = {each.name for each in fields(Note)}
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(file.read_text("utf-8"))
            facts["files"] = tuple(facts.get("files", ()))
            found.append(Note(**{name: facts[name] for name in known & facts.keys()}))
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return tuple(found)


def expected_ranks(notes: Iterable[Note]) -> set[int]:
    """The ranks that processes of this machine have: those that began, and their missing peers."""
    notes = [each for each in notes if each.rank is not None]
    ranks = {each.rank for each in notes if each.rank is not None}
    for each in notes:
        if each.world_size is not None and each.world_size == each.local_world_size:
            # all on this machine
            ranks |= set(range(each.world_size))
    return ranks
