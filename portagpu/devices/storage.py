"""Files that a device reads and writes directly, past the host's memory or the kernel's cache.

A plugin names a module with ``STORAGE`` (``Plugin.storage_module``). Importing this one imports no
torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch


class DirectFile(Protocol):
    """A file and memory of the device of the same size; :meth:`close` gives both back."""

    memory: torch.Tensor
    """Bytes (uint8) on the device, which the library knows."""

    def read(self) -> None:
        """Fill ``memory`` with the file, and return when it is there."""

    def write(self) -> None:
        """Fill the file with ``memory``, and return when storage has it."""

    def close(self) -> None:
        """A second time does nothing."""


@dataclass(frozen=True, slots=True)
class DirectStorage:
    """A library's way between files and the memory of devices.

    ``open(device, path, size)`` opens an existing file of ``size`` bytes, a multiple of 4 KiB, and
    raises Unsupported, with one line that says why, where the library, the driver or the file
    system cannot do it.
    """

    library: str
    open: Callable[[torch.device, Path, int], DirectFile]
    proof: str
    """Why a call that returns took the direct way, in one clause."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with which the library refuses what it would do through the host's memory. They
    have to be set before it is loaded."""
    counters: Callable[[], Mapping[str, int]] = dict
    """What the kernel or the driver has counted so far, by name; empty where it counts nothing."""
