"""Data model of one source: readings of GPUs, links and events, each with its source; and its JSON,
for child processes and for files.

A source is a kernel tree, a vendor's library, a vendor's tool or the kernel's log. Live detection
and replay produce the same objects. ``portagpu.machine.inventory.join`` joins them to one machine.
Unknown is None everywhere: "N/A" is never 0, and an empty name is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.documents import DocumentError, decode, encode, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence


_T = TypeVar("_T")

NO_VENDOR: Final = ""
"""The ``vendor`` of a CPU's reading."""
CPU: Final = "cpu"
"""The ``key`` of a CPU's reading: all sockets of a machine are one device."""


def without_none(values: Mapping[str, _T | None]) -> dict[str, _T]:
    """``values`` without those that are None, which is unknown."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    """A schedulable part of a GPU: a MIG slice or a compute partition.

    ``profile`` is the vendor's name of its kind ("3g.40gb", "CPX"); ``index`` its number within
    the GPU.
    """

    index: int | None = None
    uuid: str | None = None
    profile: str | None = None
    memory_bytes: int | None = None
    unit_count: int | None = None
    device_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """A GPU's PCI Express link. Generations are 1 to 7, widths are lanes.

    ``device_*`` is what the GPU can do. ``max_*`` is what GPU and slot can do together. Names
    without a prefix are the link's present state: idle GPUs lower their generation to save power.
    """

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    device_generation: int | None = None
    device_width: int | None = None
    replays: int | None = None
    """Packets that were sent again since the counter started."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Further counters of errors, by the source's own name in lower case ("nak_received")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Errors of a GPU's memory; counts are events or pages.

    ``corrected`` and ``uncorrected`` are since the driver was loaded, ``*_total`` over the
    device's life. ``retired_pages`` and ``remapped_rows`` are by cause.
    """

    ecc_enabled: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    corrected_total: int | None = None
    uncorrected_total: int | None = None
    by_block: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """(corrected, uncorrected) of each block that counts for itself ("UMC", "SRAM", "XGMI")."""
    retired_pages: Mapping[str, int] = field(default_factory=dict)
    remapped_rows: Mapping[str, int] = field(default_factory=dict)
    pending: bool | None = None
    """A page, a row or a channel waits for a reset of the GPU to be taken out of use."""
    remap_failed: bool | None = None
    exhausted_banks: int | None = None
    """Banks without a spare row: the next bad row in them cannot be remapped."""
    beyond_repair: bool | None = None
    """The GPU reports more bad memory than it can repair, or than its vendor allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a device. Anonymised recordings have none."""

    pid: int
    memory_bytes: int | None = None
    """Of the device's memory; None where the source does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """A device's values that change while the machine runs; a CPU has them too.

    Temperatures are in degrees Celsius by the sensor's name in the vendor's own tool, in lower case
    ("gpu", "memory", "edge", "junction"); ``limits_c`` by what happens there ("shutdown",
    "slowdown", "critical", "memory-critical"). ``throttling`` holds the active reasons that slow
    the clocks, empty where none is active; idle is not such a reason.
    """

    temperatures_c: Mapping[str, float] = field(default_factory=dict)
    limits_c: Mapping[str, float] = field(default_factory=dict)
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None
    utilization_percent: float | None = None
    """Of the source's last period, the part of time in which the device computed, 0 to 100."""
    memory_utilization_percent: float | None = None
    """Of that period, the part of time in which the memory controller read or wrote, 0 to 100."""
    memory_used_bytes: int | None = None
    energy_j: float | None = None
    """Energy that a counter has summed, which began at some earlier time: compare two readings."""
    fan_percent: float | None = None
    """The fans' speed, of the highest; the fastest of several. It may be above 100."""
    fan_rpm: float | None = None
    """The fans' speed in turns a minute; the fastest of several."""
    throttling: tuple[str, ...] | None = None
    throttled_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds in which a reason slowed the clocks, by reason, since the counter began."""
    throttled_ticks: Mapping[str, int] = field(default_factory=dict)
    """Periods of the source's own clock in which a reason slowed the clocks, by reason. Their part
    of time is their increase over that of ``ticks``."""
    ticks: int | None = None
    """Periods of the source's own clock, for ``throttled_ticks``."""
    processes: int | None = None
    """How many processes use the device, as far as this process may see them."""
    process_list: tuple[Process, ...] | None = None
    margin_c: float | None = None
    """Degrees until the GPU slows its clocks, where it states no limit; negative once it does."""
    recovery: str | None = None
    """The recovery action that the GPU reports ("Reset", "Reboot"); None for none or unknown."""
    error: str | None = None
    """Why the GPU did not answer, as the tool prints it."""
    fabric_wait: str | None = None
    """How the GPU waits to join the fabric of its machine, as the tool prints it."""
    fabric_error: str | None = None
    """What is wrong with the GPU in that fabric, as the tool prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """Properties of one GPU; None is unknown.

    ``pci`` is "domain:bus:device.function" in lower case with four digits of domain; ``uuid`` is as
    the vendor's runtime spells it ("GPU-..."), ``unique_id`` the hardware's number where the vendor
    has one; ``driver`` is the kernel driver's name; ``hive`` groups GPUs that one fabric joins;
    ``parts`` are its MIG slices or compute partitions, empty where it is scheduled whole.
    """

    vendor: str
    pci: str | None = None
    uuid: str | None = None
    unique_id: int | None = None
    name: str | None = None
    arch: str | None = None
    warp_size: int | None = None
    device_id: int | None = None
    revision_id: int | None = None
    subsystem_id: int | None = None
    memory_bytes: int | None = None
    unit_count: int | None = None
    numa_node: int | None = None
    driver: str | None = None
    device_file: str | None = None
    firmware: Mapping[str, str] = field(default_factory=dict)
    compute_partition: str | None = None
    memory_partition: str | None = None
    mig_enabled: bool | None = None
    parts: tuple[GpuPart, ...] = ()
    hive: str | None = None
    pcie: Pcie = Pcie()
    memory: Memory = Memory()
    state: GpuState = GpuState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Properties):
    """One GPU as one source reports it.

    ``index`` is the source's own order, which differs between sources. ``extra`` holds values that
    only this source has, as text. ``missing`` says why a value is not there, by the field's name
    ("power_w"), where the source knows the reason.
    """

    source: str
    index: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        """The device's PCI address, else its UUID; "cpu" for the CPU, None where nothing names it.

        An index is none: it changes between sources, and between two readings of one.
        """
        return self.pci or self.uuid or (CPU if self.vendor == NO_VENDOR else None)


class Node(StrEnum):
    """What a link ends at."""

    GPU = "gpu"
    CPU = "cpu"
    """A socket or NUMA node of the host."""
    SWITCH = "switch"
    """A switch of PCI Express or of the GPUs' own fabric."""
    NIC = "nic"
    UNKNOWN = "unknown"
    """The source does not say what is at the link's other end."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link, as the source names it.

    ``name`` is the source's own name ("GPU0", "mlx5_0", "node 2"); a GPU's index in the source or
    its address joins it to readings.
    """

    node: Node
    name: str
    pci: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link from ``a`` to ``b``; the other direction is a link of its own.

    ``kind`` is "nvlink", "xgmi", "pcie", "cpu" (between sockets), "c2c", "infiniband", "roce",
    "ethernet", "network" (of a link layer that cannot be read) or "p2p" (the access alone is
    stated); "unknown" where the source states a way and not its kind, or its word for another.
    ``path`` is the vendor tool's word for the way ("NV18", "PIX", "NODE", "SYS"); ``count`` the
    number of parallel links; ``width`` lanes of one; ``speed_gbit_s`` of one lane;
    ``bandwidth_bytes_s`` what the source states for all of them in one direction; ``weight`` and
    ``hops`` are the source's costs; ``up`` is None where the source does not state it.
    """

    source: str
    a: End
    b: End
    kind: str
    path: str | None = None
    count: int | None = None
    width: int | None = None
    speed_gbit_s: float | None = None
    bandwidth_bytes_s: float | None = None
    weight: int | None = None
    hops: int | None = None
    up: bool | None = None
    peer_access: bool | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    """Counters of errors since the driver was loaded, by the source's name ("crc_flit_error")."""
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line of a log about a device.

    ``code`` is "Xid 79" or the driver's own word; ``meaning`` and ``action`` are the vendor's
    documentation in a few words, None for a code that it does not list; ``fatal`` where the vendor
    says that the GPU needs a reset or replacement. ``todo`` is ``action`` for programs
    (``portagpu.runs.results.advice``), and ``reference`` the document that both are from.
    ``device`` is what the line calls the device where it states no address ("drmn0").
    ``unsettled`` is a line whose words say that the GPU may be lost, while no document says more.
    """

    source: str
    vendor: str
    code: str
    pci: str | None = None
    time: str | None = None
    meaning: str | None = None
    action: str | None = None
    fatal: bool | None = None
    todo: str | None = None
    reference: str | None = None
    line: str = ""
    device: str | None = None
    unsettled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that one source reports, and what of it could not be read.

    ``versions`` is by name ("driver", "cuda", "rocm", "amdgpu"); ``problems`` are sentences for
    people: they say what is missing. ``kind`` names the format ("nvidia-smi -q -x").
    """

    kind: str
    readings: tuple[Reading, ...] = ()
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    taken: str | None = None
    """When the source was read, as it states it."""
    problems: tuple[str, ...] = ()
    breaks_off: bool = False
    """The source was cut: there may be devices that it does not list."""
    complete: bool | None = None
    """True for a list of all devices that the vendor's driver serves, whose end is in it; False for
    such a list that does not show its end; None for what is not such a list."""


class FormatError(ValueError):
    """The text is not of this format, or nothing in it can be used; one line says why."""


def first_known(values: Sequence[Any]) -> Any:
    """The first known value; mappings and groups of values are merged key by key."""
    kind: Any = next((value for value in values if value is not None), None)
    if isinstance(kind, Mapping):
        joined: dict[Any, Any] = {}
        for value in values:
            for key, item in value.items():
                joined.setdefault(key, item)
        return joined
    if not is_dataclass(kind) or isinstance(kind, type) or len(values) == 1:
        return kind
    names = [field.name for field in fields(kind)]
    return replace(
        kind, **{name: first_known([getattr(v, name) for v in values]) for name in names}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What reads devices: ``module.function()`` returns findings as JSON, at each call new ones.

    ``name`` is the library's name for people. The function is called in a child process that
    imports the module once; readings and links alone are taken from its findings, and its problems.
    It returns the values that change (state, PCIe, memory errors, links) and what names the device
    (PCI address, UUID, name, memory).
    """

    name: str
    module: str
    function: str = "sample"


MAX_NUMBER: Final = 1e24
"""The largest number: of bytes, units or identities, all of which have at most 64 bits."""


def to_document(findings: Findings) -> dict[str, Any]:
    """``findings`` as values that JSON holds; :func:`from_document` reads them."""
    document: dict[str, Any] = encode(findings)
    return document


def from_document(document: object) -> Findings:
    """The findings in ``document``. Raises FormatError with the place of what is wrong.

    Numbers that no machine has are left out.
    """
    try:
        return decode(Findings, _plausible(document, "findings"), "findings")
    except DocumentError as error:
        raise FormatError(str(error)) from error


def _plausible(value: Any, where: str) -> Any:
    """``value`` without numbers that no machine has; raises for text that is not one line."""
    if value is None:
        return None
    if isinstance(value, dict):
        if not all(isinstance(key, str) and key.isprintable() for key in value):
            raise refuse(where, "an object with keys of printable text", value)
        kept = {key: item for key, item in value.items() if not _is_implausible(item)}
        return {key: _plausible(item, f"{where}.{key}") for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [
            None if _is_implausible(item) else _plausible(item, f"{where}[{index}]")
            for index, item in enumerate(value)
        ]
    if isinstance(value, str) and not value.isprintable():
        raise refuse(where, "text of one line", value)
    return value


def _is_implausible(value: object) -> bool:
    """Whether ``value`` is a number that no machine has; NaN compares with nothing."""
    return isinstance(value, int | float) and not abs(value) <= MAX_NUMBER
