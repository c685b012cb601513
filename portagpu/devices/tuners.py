"""Tuning back ends of a vendor's libraries: what turns them on, and whether what they kept is used.

A plugin names a module with ``TUNERS`` (``Plugin.tuners_module``). Importing this one imports no
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@dataclass(frozen=True, slots=True)
class TunerState:
    """The state of one tuning back end in this process; None is unknown.

    ``on`` is whether it is used, ``warm`` whether it kept something, ``valid`` whether what it kept
    is for this device and these versions. ``where`` is the file or folder that it keeps it in, and
    ``entries`` how much that is.
    """

    on: bool
    warm: bool | None
    valid: bool | None
    where: str | None = None
    entries: int | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Tuner:
    """One back end: ``switched(True)`` is a block in which it is on, ``switched(False)`` off.

    ``work`` is what it makes faster: matrix products or convolutions.
    """

    name: str
    work: Literal["product", "convolution"]
    state: Callable[[], TunerState]
    switched: Callable[[bool], AbstractContextManager[object]]


def files_below(folder: str | Path) -> int | None:
    """How many files are in ``folder`` and below; None if it cannot be read."""
    root = Path(folder)
    try:
        return sum(1 for each in root.rglob("*") if each.is_file()) if root.is_dir() else 0
    except OSError:
        return None
