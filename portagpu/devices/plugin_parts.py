"""What a plugin states next to its devices: environment variables, tuners and direct storage.

- :class:`Variables` of features that every vendor's stack has (``gpu.plugin.variables``). Names and
  values differ, and libraries silently ignore variables of other vendors. The methods return
  environments for a process that is started later, and set no variable themselves.
- :class:`Tuner`: a tuning back end of a vendor's libraries, in ``TUNERS`` of the module that
  ``Plugin.tuners_module`` names.
- :class:`DirectStorage`: files that a device reads and writes past the host's memory or the
  kernel's cache, in ``STORAGE`` of the module that ``Plugin.storage_module`` names.

Importing this module imports no torch.

>>> from portagpu.devices.plugin_parts import Variables
>>> Variables(caches={"EXAMPLE_CACHE_DIR": "example"}).for_job("/scratch/job-7")
{'EXAMPLE_CACHE_DIR': '/scratch/job-7/example'}
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Literal, Protocol

from portagpu.base.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

EXPANDABLE: Final = "expandable_segments"
"""The allocator's setting that not every build of torch has (torch, "CUDA semantics")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """One vendor's variables and their values.

    ``one_by_one`` makes every launch wait for its end, so that an error comes from the call that
    made it. With ``no_peer_copies`` collectives use the host's memory or the network and not the
    links between devices. ``caches`` maps a variable to a name inside a job's folder. ``faults``
    says what remains after a fault: no image of the GPU's memory. ``allocator`` are all names that
    versions of torch read settings of the caching allocator from. ``arch_list`` is what extensions
    are built for; ``arch_form`` is the form of an architecture's name, and how the list spells it.
    ``expandable_from`` are the first releases of torch and of the vendor's toolkit whose allocator
    has expandable segments; None where every release that this package supports has them.
    """

    one_by_one: Mapping[str, str] = field(default_factory=dict)
    no_peer_copies: Mapping[str, str] = field(default_factory=dict)
    caches: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    allocator: tuple[str, ...] = ()
    expandable_from: tuple[tuple[int, int], tuple[int, int]] | None = None
    arch_list: str | None = None
    arch_form: tuple[str, str] = (r"(.+)", r"\1")

    def for_debugging(self) -> dict[str, str]:
        """The environment in which launches run one by one: slow, and errors where they belong."""
        return dict(self.one_by_one)

    def for_job(self, folder: str | PurePath) -> dict[str, str]:
        """The environment of a job: caches in ``folder``, and no image of memory after a fault.

        Caches are databases that several jobs must not write at a time, least over a network: give
        each job a folder on a disk of its node. Ranks of one job on one node share it.
        """
        root = PurePath(folder)
        return {name: str(root / place) for name, place in self.caches.items()} | dict(self.faults)

    def for_allocator(self, settings: str, *, torch: str, toolkit: str | None) -> dict[str, str]:
        """The caching allocator's ``settings`` under every name that it reads.

        :param settings: as torch reads them: "max_split_size_mb:512".
        :param torch: the version of torch that will run: ``torch.__version__``.
        :param toolkit: the version of the vendor's toolkit: ``torch.version.hip`` or ``cuda``; None
            where it is not known.
        :returns: names and values of variables.
        :raises Unsupported: where there is no such allocator, and for expandable segments that
            those versions do not have: torch ignores them with a warning.
        """
        if not self.allocator:
            raise Unsupported("this device has no caching allocator: leave its settings out")
        if re.search(rf"{EXPANDABLE}\s*:\s*true", settings, re.IGNORECASE) and self.expandable_from:
            first = " and ".join(f"{a}.{b}" for a, b in self.expandable_from)
            found = (_release(torch), _release(toolkit))
            if any(
                have is None or have < need
                for have, need in zip(found, self.expandable_from, strict=True)
            ):
                raise Unsupported(
                    f"expandable segments need torch and a toolkit of {first}, and these are "
                    f"{torch} and {toolkit}: leave {EXPANDABLE} out"
                )
        return dict.fromkeys(self.allocator, settings)

    def for_building(self, archs: Sequence[str]) -> dict[str, str]:
        """What extensions are built for: ``archs`` are names as in ``gpu.arch.name``.

        Raises ValueError for no architecture, for which a build takes those that it happens to see,
        and for another vendor's; Unsupported where extensions are not built for architectures.
        """
        if self.arch_list is None:
            raise Unsupported("extensions for this device are not built for architectures")
        if not archs:
            raise ValueError("name the architectures to build for: there is none")
        spelt = dict.fromkeys(self._list_entry(arch) for arch in archs)
        return {self.arch_list: ";".join(spelt)}

    def _list_entry(self, arch: str) -> str:
        match = re.fullmatch(self.arch_form[0], arch)
        if match is None:
            raise ValueError(f"{arch!r} is not an architecture that {self.arch_list} can name")
        return match.expand(self.arch_form[1])


def _release(version: str | None) -> tuple[int, int] | None:
    """(6, 4) of "6.4.43482-0f2d60242"; None where there is none."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


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
