"""The machine that all sources together describe: its GPUs, links and events."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import TargetError
from portagpu.facts.readings.model import Event, Findings, Link, Properties, Reading
from portagpu.facts.targets import identify, named_product, product_with_pci_id
from portagpu.facts.targets.model import normalise
from portagpu.facts.vendors import vendor_named, vendors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from portagpu.facts.host.tree import Tree
    from portagpu.facts.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Properties):
    """One physical GPU: the values of the first source that states one.

    ``indices`` is its number in each source's own order, which differ. ``sources`` are those that
    list it, the most trusted first. ``disagreements`` has one sentence for each value on which
    sources contradict each other.
    """

    driver_version: str | None = None
    indices: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """GPUs that sources name and a list of what their driver serves lacks.

    ``gpu`` is the one that is missing; None where the list names none of its ``count`` missing
    GPUs apart. ``doubt`` is why it may be missing there without a fault, empty without one;
    ``excuse`` is why it has to be missing there, as a guest's GPU has.
    """

    vendor: str
    gpu: Gpu | None
    count: int
    sources: tuple[str, ...]
    missing_in: str
    doubt: str = ""
    excuse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A machine: its GPUs in the order of PCI addresses, its links and events.

    ``kinds`` are the sources that were read. ``versions`` are of software by name; each GPU has its
    driver's. ``problems`` are sentences for people.
    """

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    events: tuple[Event, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    breaks_off: bool = False
    """A source was cut, and no complete one lists as many GPUs: there may be more."""
    unlisted: tuple[Unlisted, ...] = ()
    unpaired: int = 0
    """GPUs that may be in ``gpus`` twice: some sources name them by UUID, others by address."""

    @property
    def in_doubt(self) -> Event | None:
        """What the only source of a GPU reports of it, where the GPU may be of no use."""
        only: dict[str | None, set[str]] = {
            gpu.pci: {*gpu.sources} - {PCI_ID} for gpu in self.gpus if gpu.pci is not None
        }
        reported = (each for each in self.events if each.unsettled)
        return next((each for each in reported if only.get(each.pci) == {each.source}), None)


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


PCI_ID: Final = "pci-id"
"""The source of names found by PCI id; used where no other source has a name."""

# the PCI ID database, by chip; a vendor's own list goes by chip and revision
_DATABASES: Final = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")


@cache
def _no_product() -> re.Pattern[str]:
    """Texts that drivers and tools print instead of an unknown product name."""
    makers = "|".join(
        [*(name for each in vendors().values() for name in each.makers), "corporation"]
    )
    brands = "|".join(name for each in vendors().values() for name in each.brands)
    return re.compile(
        rf"(({makers})\s*)*"
        rf"((({brands}) )?(graphics|gpu|graphics device)"
        r"|(3d|vga|display)( compatible)? controller)?"
        r" ?(device( [0-9a-f]{4})?|0x[0-9a-f]{4})?"
    )


def product_name(text: str | None) -> str | None:
    """``text`` where it names a product: not "AMD Radeon Graphics", "Device 74a1" or nothing."""
    if text is None:
        return None
    name = " ".join(text.split())
    bare = normalise(name)
    if bare in ("", "n a", "unknown", "none") or _no_product().fullmatch(bare):
        return None
    return name


def name_findings(tree: Tree, findings: Iterable[Findings]) -> Findings:
    """Name and architecture by PCI id of every GPU whose address and device id are known.

    A target's ids come first, then the lists that the machine itself has. A wrong target file names
    nothing; who loads the targets reports it. An architecture that a source has asked for counts
    alone: early samples have the id of what was sold later, and another architecture.
    """
    ids: dict[str, list[Reading]] = {}
    for each in findings:
        for reading in each.readings:
            if reading.pci is not None:
                ids.setdefault(reading.pci, []).append(reading)
    readings = []
    texts: dict[str, str] = {}
    for pci, known in ids.items():
        device = next((r.device_id for r in known if r.device_id is not None), None)
        revision = next((r.revision_id for r in known if r.revision_id is not None), None)
        if device is not None:
            vendor = known[0].vendor
            name, arch = _look_up(tree, texts, vendor, device, revision)
            arch = None if any(reading.arch is not None for reading in known) else arch
            readings.append(Reading(source=PCI_ID, vendor=vendor, pci=pci, name=name, arch=arch))
    return Findings(kind=PCI_ID, readings=tuple(r for r in readings if r.name is not None))


def with_pci_id_names(inventory: Inventory, tree: Tree) -> Inventory:
    """``inventory`` with names by device id for GPUs without an address."""
    texts: dict[str, str] = {}

    def with_name(gpu: Gpu) -> Gpu:
        if gpu.pci is not None or gpu.device_id is None or gpu.name is not None:
            return gpu
        name, arch = _look_up(tree, texts, gpu.vendor, gpu.device_id, gpu.revision_id)
        if name is None:
            return gpu
        return replace(gpu, name=name, arch=gpu.arch or arch, sources=(*gpu.sources, PCI_ID))

    return replace(inventory, gpus=tuple(map(with_name, inventory.gpus)))


def _look_up(
    tree: Tree, texts: dict[str, str], vendor: str, device: int, revision: int | None
) -> tuple[str | None, str | None]:
    try:
        target = product_with_pci_id(vendor, device, revision)
    except TargetError:
        target = None
    if target is not None:
        # an id says no more than a name that several products print: their units decide
        return target.match.shared_name or target.match.name, target.arch.name

    def text(path: str) -> str:
        if path not in texts:
            texts[path] = tree.text(path) or ""
        return texts[path]

    name, known = None, vendor_named(vendor)
    if known.chip_list is not None and revision is not None:
        name = _chip_list_name(text(known.chip_list), device, revision)
    for path in _DATABASES:
        for number in known.pci_ids:
            name = name or _pci_ids_name(text(path), number, device)
    return name, None


def _chip_list_name(text: str, device: int, revision: int) -> str | None:
    match = re.search(rf"(?mi)^{device:04x},\s*{revision:02x},\s*(\S.*)$", text)
    return match.group(1).strip() if match else None


def _pci_ids_name(text: str, vendor: int, device: int) -> str | None:
    """The product's name in pci.ids, where it follows the chip's name in brackets."""
    start = text.find(f"\n{vendor:04x}  ")
    if start < 0:
        return None
    end = re.compile(r"\n[0-9a-fA-FC]").search(text, start + 1)
    section = text[start : end.start() if end else len(text)]
    match = re.search(rf"(?m)^\t{device:04x}  (.+)$", section)
    if match is None:
        return None
    bracket = re.search(r"\[(.+)\]\s*$", match.group(1))
    return product_name(bracket.group(1) if bracket else match.group(1))
