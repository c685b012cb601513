"""The contract between portable code and a vendor: what a backend must do, and how it is found.

Two small abstract classes. A :class:`Plugin` is what an entry point of the group
``portagpu.backends`` names: it answers, without importing torch, whether its hardware and its build
of torch are here, and opens devices. A :class:`Backend` is one opened device for life: some data
about it, and the primitives over which :mod:`portagpu.training` writes the whole training surface.

The contract has a version. A backend states the one it was written for; another major version, or
a newer minor one than this package has, is refused with both numbers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from portagpu import oom
from portagpu.training import Ranges, Training
from portagpu.variables import Variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from portagpu.arch import Arch
    from portagpu.collectives.comm import Comm
    from portagpu.compile.toolchain import Toolchain
    from portagpu.inventory import Findings
    from portagpu.objects import Event as EventType
    from portagpu.objects import Stream as StreamType
    from portagpu.precision import Precision
    from portagpu.sizing import Sizing
    from portagpu.target import Target

CONTRACT: Final = (1, 2)
"""(major, minor): a new minor adds optional members; a new major changes what is required."""


class Capability(StrEnum):
    """What a device can be asked for beyond plain tensors.

    A capability that a backend claims must work; one that it does not claim must raise
    :class:`portagpu.Unsupported` from every call named here. The conformance suite checks both.
    """

    STREAMS = "streams"
    """``Stream``, ``stream``, ``current_stream``: ordered queues of work."""
    EVENTS = "events"
    """``Event``: points in a stream, with times where ``enable_timing=True``."""
    GRAPHS = "graphs"
    """``Graph``: work that is captured once and replayed."""
    PEAK_MEMORY = "peak-memory"
    """``reset_peak_memory_stats``: the peaks of ``memory_stats`` start again from now."""
    PINNED_MEMORY = "pinned-memory"
    """``pin``: page-locked host memory."""
    AUTOCAST = "autocast"
    """``autocast`` and ``GradScaler``: mixed precision. With ``enabled=False`` both work on every
    device, and change nothing."""
    COLLECTIVES = "collectives"
    """``comm``: process groups over the vendor's communication library. A device without one has
    ``Comm.none(device.type)``."""
    EXTERNAL_STREAMS = "external-streams"
    """``ExternalStream``: streams of other libraries. Since contract 1.2."""
    ALLOCATOR = "allocator"
    """``memory_snapshot`` and its record and dump, ``MemPool``, ``use_mem_pool`` and
    ``set_per_process_memory_fraction``: torch's caching allocator. Since contract 1.2."""
    IPC = "ipc"
    """``ipc_collect``, and tensors of the device that ``torch.multiprocessing`` hands to another
    process without a copy. Since contract 1.2."""


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a backend can be used here, and why or why not, in one sentence.

    ``automatic`` says that the torch that is installed was built for this backend and that its
    hardware is here, so that it may be chosen without being asked for.
    """

    usable: bool
    reason: str
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a GPU that is a device of its own: a slice or a partition."""

    name: str
    """As the vendor calls it: "3g.40gb", "CPX NPS1"."""
    product: str | None
    """The name of the whole GPU's product, where the device states it."""
    of: int | None = None
    """Into how many equal parts the GPU is divided; None where they may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a backend knows about its device when it opens it. Unknown is None."""

    name: str
    """The backend's name, as given to ``portagpu.backend(name)``."""
    index: int
    device: torch.device
    arch: Arch
    product: str | None
    """The product's name as the device reports it, else the one of its target."""
    vendor: str | None = None
    """The maker of the silicon ("nvidia", "amd", "intel"), for people; decide by ``arch``."""
    target: Target | None
    capabilities: frozenset[Capability]
    precision: Precision
    comm: Comm
    sizing: Sizing
    uuid: str | None = None
    pci: str | None = None
    """The PCI address, ``domain:bus:device.function`` in hexadecimal."""
    part: Part | None = None
    """Which part of a GPU the device is; None for a whole one, and where it is not known."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Driver, runtime and libraries by name."""


class Backend(Training, ABC):
    """One device, opened for life.

    The attributes are those of :class:`Description`. A subclass gives the primitives below, and
    those of :class:`portagpu.optional.Optional` that its device has: what training code calls under
    torch's names is written once over them, in :class:`portagpu.training.Training`. Every primitive
    either does what its docstring says on this device, or raises :class:`portagpu.Unsupported` when
    the capability it belongs to is not claimed. None of them may be a silent no-op.

    Handles compare by identity and are safe to use from several threads as far as torch is.
    """

    __slots__ = (
        "_ranges",
        "arch",
        "capabilities",
        "comm",
        "device",
        "index",
        "name",
        "part",
        "pci",
        "plugin",
        "precision",
        "product",
        "sizing",
        "target",
        "uuid",
        "vendor",
        "versions",
    )

    def __init__(self, plugin: Plugin, description: Description) -> None:
        self.plugin = plugin
        self.name = description.name
        self.index = description.index
        self.device = description.device
        self.arch = description.arch
        self.product = description.product
        self.vendor = description.vendor
        self.target = description.target
        self.capabilities = description.capabilities
        self.precision = description.precision
        self.comm = description.comm
        self.sizing = description.sizing
        self.uuid = description.uuid
        self.pci = description.pci
        self.part = description.part
        self.versions = description.versions
        self._ranges = Ranges()
        oom.remember(plugin.out_of_memory)

    _known_capabilities = tuple(Capability)

    current_index: ClassVar[Callable[[], int] | None] = None
    """torch's function for the index of the device of this kind that is current in this thread;
    None where torch has no current device (a CPU). Since contract 1.2."""

    def __repr__(self) -> str:
        product = self.product or "unknown product"
        return f"<{self.name} backend on {self.device}: {product} ({self.arch})>"

    @abstractmethod
    def activate(self) -> None:
        """Make this device the one that torch's own calls without a device use."""

    @abstractmethod
    def get_device_properties(self) -> Any:
        """torch's properties object of this device, or one with its field names.

        At least ``name`` (str), ``total_memory`` (bytes), ``multi_processor_count`` and
        ``warp_size``.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work on this device, from every stream, is done."""

    @abstractmethod
    def mem_get_info(self) -> tuple[int, int]:
        """(free, total) memory of the device in bytes, as the driver or the kernel sees it."""

    @abstractmethod
    def memory_stats(self) -> Mapping[str, int]:
        """This process's memory on the device in bytes, under torch's keys.

        At least ``{allocated,reserved}_bytes.all.{current,peak}``; other keys of torch's allocator
        where there are any. A peak is never below its current value.
        """

    @abstractmethod
    def reset_peak_memory_stats(self) -> None:
        """Start the peaks of :meth:`memory_stats` again from the current values.

        Raises Unsupported where PEAK_MEMORY is not claimed.
        """

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that the allocator holds but no tensor uses back to the system."""

    @abstractmethod
    def generator(self) -> torch.Generator:
        """The device's default random number generator, the one that ``torch.rand`` uses there."""

    @abstractmethod
    def Stream(self, priority: int = 0) -> StreamType:  # noqa: N802 - torch's name
        """A new stream, with torch's ``synchronize``, ``query``, ``wait_*`` and ``record_event``.

        A lower ``priority`` is more urgent. Raises Unsupported where STREAMS is not claimed.
        """

    @abstractmethod
    def current_stream(self) -> StreamType:
        """The stream that work is put on now. Raises Unsupported where STREAMS is not claimed."""

    @abstractmethod
    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Put work on ``stream`` inside the block; ``None`` changes nothing, as in torch."""

    @abstractmethod
    def Event(  # noqa: N802 - torch's name
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> EventType:
        """A new event: ``record``, ``wait``, ``query``, ``synchronize``, ``elapsed_time``.

        ``start.elapsed_time(end)`` is in milliseconds, needs ``enable_timing`` on both, and is
        measured on the device's own clock. Raises Unsupported where EVENTS is not claimed.
        """

    @abstractmethod
    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """Mark the block as ``name`` for the vendor's profiler (NVTX, ROCTx or record_function)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What conformance cases come to on one backend, where that is not what they say themselves.

    ``pattern`` is a case's id, with or without its parameters, and may have ``*`` and ``?``; an
    area by itself is none. ``outcome`` is "unsupported" (such a case has to raise Unsupported) or
    "undefined" (it is recorded and never judged). ``reason`` is a clause, and ``url`` is where the
    vendor says so. No override makes a case pass. Raises ValueError for a part that is missing or
    of another form, and TypeError for one that is no text.
    """

    pattern: str
    outcome: str
    reason: str
    url: str

    def __post_init__(self) -> None:
        for name in ("pattern", "outcome", "reason", "url"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"an override's {name} is text, not {getattr(self, name)!r}")
        if self.outcome not in ("unsupported", "undefined"):
            raise ValueError(f"an override's outcome is unsupported or undefined: {self.outcome!r}")
        if "/" not in self.pattern:
            raise ValueError(f"an override is for cases, area/name: {self.pattern!r} is none")
        if not self.reason.strip() or not self.reason.isprintable():
            raise ValueError(f"the override of {self.pattern} needs a reason of one line")
        if not re.fullmatch(r"https://\S+", self.url):
            raise ValueError(f"an override's url must be an https address, not {self.url!r}")


class Plugin(ABC):
    """What an entry point of the group ``portagpu.backends`` names: an instance of a subclass.

    Nothing here may import torch or a vendor's package at import. :meth:`status` and :meth:`count`
    must answer within seconds and open no device, so that a process may still fork afterwards.
    """

    name: ClassVar[str]
    """The name users give; the entry point has the same."""
    contract: ClassVar[tuple[int, int]] = CONTRACT
    """The version of the contract that the plugin was written for: state it as literal numbers."""
    commands: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Command lines whose output says what this vendor's devices are and how they are linked, in
    formats of ``portagpu.telemetry.formats``. Since contract 1.1; run where such a GPU is."""
    toolchain_module: ClassVar[str] = ""
    """The module with ``TOOLCHAIN``, which :meth:`toolchain` imports. Since contract 1.1."""
    vendor: ClassVar[str] = ""
    """Whose GPUs these are, as ``portagpu.inventory`` calls it; empty for a CPU."""
    shared: ClassVar[bool] = False
    """True where all ranks of a machine share one device, so that any index opens it (a CPU). It
    counts as several devices where a launcher has several ranks (``portagpu.sharing``)."""
    start_s: ClassVar[float] = 0.0
    """Seconds that the ranks of one machine may need to open their devices and to form a group, all
    at once and with nothing loaded; time limits of worlds begin after it. Since contract 1.2."""
    out_of_memory: ClassVar[tuple[str, ...]] = ()
    """Parts of the texts with which this vendor's errors say that memory is exhausted, for those
    that are no ``torch.OutOfMemoryError`` and not in ``portagpu.oom``. Since contract 1.2."""
    variables: ClassVar[Variables] = Variables()
    """The vendor's names of variables for what every stack can do; since contract 1.1."""
    overrides: ClassVar[tuple[Override, ...]] = ()
    """Conformance cases with another outcome on this backend; the first that fits counts. Since
    contract 1.1."""

    @abstractmethod
    def status(self) -> Status:
        """Whether this backend can be used here, decided from torch's build and the machine."""

    @abstractmethod
    def count(self) -> int:
        """The number of devices that can be opened: at least 1 where the status is usable."""

    @abstractmethod
    def open(self, index: int) -> Backend:
        """Open the device of that index (among the visible ones). Imports torch."""

    def current_index(self) -> int | None:
        """The index of torch's current device of this kind, None where torch has opened none yet.

        Since contract 1.2. Imports no torch and opens no device.
        """
        return None

    def prepare(self) -> None:  # noqa: B027 - nothing to import is a fair answer
        """Import what :meth:`open` needs, and open nothing.

        A process that forks ranks calls it once, so that each rank need not.
        """

    def probe(self) -> Findings:
        """What the vendor's management library says of this machine's GPUs, visible or not.

        Since contract 1.1. Needs no torch, opens no device in this process, and asks nothing where
        the machine shows none of this vendor's GPUs. A library that is missing, fails or does not
        answer is a sentence in ``problems``; nothing is raised for it.
        """
        from portagpu.inventory import Findings

        return Findings(kind=self.name)

    def toolchain(self) -> Toolchain | None:
        """How this vendor's code is built and read, without torch; None for what builds none.

        Since contract 1.1.
        """
        if not self.toolchain_module:
            return None
        found: Toolchain = import_module(self.toolchain_module).TOOLCHAIN
        return found

    def telemetry(self, index: int) -> Mapping[str, float]:
        """Readings of that device now, by name with the unit as suffix; empty where none is shown.

        Names in use: ``clock_mhz``, ``memory_clock_mhz``, ``temperature_c``, ``power_w``,
        ``throttle_count`` (events since boot). Needs no torch.
        """
        del index
        return {}
