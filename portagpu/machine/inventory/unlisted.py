"""GPUs that sources name and a list of what their driver serves lacks.

PCI, KFD, a log or an older list still name a GPU that its driver no longer serves. Only a list of
all devices that the driver serves (``Findings.complete``) can lack one. Why a GPU may be missing
there without a fault has its evidence here: it is passed through to a virtual machine, it is a
virtual function, no list of that driver ever has such products, or another list has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from portagpu.facts.vendors import vendor_named
from portagpu.machine.inventory.gpu import PCI_ID, Unlisted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from portagpu.facts.readings.model import Findings, Reading
    from portagpu.machine.inventory.gpu import Gpu

# drivers of Linux that hold a device for a guest (drivers/vfio, drivers/xen, pci-stub)
_PASSED_THROUGH: Final = re.compile(r".*vfio.*|pci-stub|(?:xen-)?pciback|uio_pci_generic")
_BUS: Final = re.compile(r"([0-9a-f]{4,8}:([0-9a-f]{2})):([0-9a-f]{2})\.([0-7])")
_OF_COMPUTE: Final = frozenset({"0302", "1200"})
"""PCI classes of GPUs without a display: 3D controllers and processing accelerators."""
_OPEN: Final = "{} may go on, or list a part of the GPUs"
_BY_PCI_ALONE: Final = ("sysfs pci", "lspci", "drm", "dev", PCI_ID)


class Counted(NamedTuple):
    """Readings of one list that name no GPU: how many, and how many GPUs were given one of them."""

    readings: int
    shared: int


class Listed(NamedTuple):
    """A GPU with its readings, each with the number of its Findings, and these ``numbers``."""

    gpu: Gpu
    readings: Sequence[tuple[int, Reading]]
    numbers: frozenset[int]

    def named_by(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.source for _, r in self.readings if r.source != PCI_ID))


def find_unlisted(
    findings: Sequence[Findings],
    listed: Sequence[Listed],
    counted: Mapping[tuple[int, str], Counted],
) -> Iterator[Unlisted]:
    """The GPUs of ``listed`` that the lists of their drivers lack, each once.

    :param findings: all sources, by number
    :param counted: readings that name no GPU, by the number of their Findings and by vendor
    """
    by_vendor: dict[str, list[Listed]] = defaultdict(list)
    for one in listed:
        by_vendor[one.gpu.vendor].append(one)
    for vendor, gpus in by_vendor.items():
        lists = [
            (number, each)
            for number, each in enumerate(findings)
            if each.complete is not None and any(r.vendor == vendor for r in each.readings)
        ]
        # what a whole list lacks is certain, and no list that may go on changes it
        lists.sort(key=lambda pair: not pair[1].complete)
        seen: set[int] = set()
        for number, each in lists:
            present = _physical(gpus, number)
            own = set(map(id, present))
            for one in gpus:
                if id(one) not in own and id(one) not in seen:
                    seen.add(id(one))
                    yield _excused(one, each)
            nameless = counted.get((number, vendor))
            if nameless is not None:
                have = sum(number in one.numbers for one in present) - nameless.shared
                fewer = len(present) - have - nameless.readings
                yield from _fewer(vendor, present, each, fewer)
                continue
            absent = [one for one in present if number not in one.numbers]
            if not each.complete:
                others = {n for n, _ in lists}
                absent = [one for one in absent if not others & one.numbers]
            having = [one for one in present if number in one.numbers]
            names = {_named_by(one) for one in absent}
            same = sum(any(map(_named_by(other).isdisjoint, names)) for other in having)
            if same:
                yield from _fewer(vendor, absent, each, len(absent) - same)
                continue
            again = {n for n, other in lists if other.kind == each.kind and n != number}
            for one in absent:
                if id(one) not in seen:
                    seen.add(id(one))
                    yield _missing(one, having, each, again=bool(again & one.numbers))


def unpaired(listed: Sequence[Listed]) -> int:
    """How many GPUs may be in ``listed`` twice: once by UUID alone, and once by address alone."""
    found = 0
    for vendor in {each.gpu.vendor for each in listed}:
        gpus = [each.gpu for each in listed if each.gpu.vendor == vendor]
        by_uuid = sum(gpu.pci is None and gpu.uuid is not None for gpu in gpus)
        by_address = sum(gpu.pci is not None and gpu.uuid is None for gpu in gpus)
        found += min(by_uuid, by_address)
    return found


def _named_by(one: Listed) -> frozenset[str]:
    """What names the GPU: two that have no such name in common may be the same GPU."""
    pairs = (("address", one.gpu.pci), ("UUID", one.gpu.uuid))
    return frozenset(what for what, name in pairs if name is not None)


def _physical(gpus: Sequence[Listed], number: int) -> list[Listed]:
    """Those of ``gpus`` that are GPUs of this machine's driver: no guest's and no virtual ones."""
    have = {_bus(each.gpu) for each in gpus if number in each.numbers}
    virtual = {
        _bus(each.gpu)
        for each in gpus
        if number not in each.numbers and not (each.gpu.pci or ".0").endswith(".0")
    } & have
    return [
        each
        for each in gpus
        if number in each.numbers
        or not (
            _PASSED_THROUGH.fullmatch(each.gpu.driver or "")
            or (each.gpu.pci is not None and _bus(each.gpu) in virtual)
        )
    ]


def _bus(gpu: Gpu) -> str | None:
    """The GPU's own bus; None for bus 0, where a guest's devices are next to one another."""
    match = _BUS.fullmatch(gpu.pci or "")
    return match[1] if match is not None and match[2] != "00" else None


def _excused(one: Listed, found: Findings) -> Unlisted:
    held = one.gpu.driver if _PASSED_THROUGH.fullmatch(one.gpu.driver or "") else None
    return Unlisted(
        vendor=one.gpu.vendor,
        gpu=one.gpu,
        count=1,
        sources=one.named_by(),
        missing_in=found.kind,
        excuse=f"{held} holds it for a guest" if held else "it is a virtual function",
    )


def _missing(one: Listed, others: Sequence[Listed], found: Findings, *, again: bool) -> Unlisted:
    doubt = ""
    if not found.complete:
        doubt = _OPEN.format(found.kind)
    elif again:
        doubt = f"another list of {found.kind} has it"
    else:
        doubt = _doubt(one, others)
    return Unlisted(
        vendor=one.gpu.vendor,
        gpu=one.gpu,
        count=1,
        sources=one.named_by(),
        missing_in=found.kind,
        doubt=doubt,
    )


def _doubt(one: Listed, others: Sequence[Listed]) -> str:
    """Why a complete list may lack this GPU without a fault; empty for no reason."""
    if one.gpu.driver is not None:
        unusable = vendor_named(one.gpu.vendor).unusable_drivers.get(one.gpu.driver)
        if unusable is not None:
            return f"it is bound to {one.gpu.driver}"
    if (bus := _bus(one.gpu)) is not None and any(_bus(each.gpu) == bus for each in others):
        return "it is on the bus of another one, and may be a virtual function of it"
    if _is_of_compute(one, others):
        return ""
    return "it may be a display adapter, which such lists do not have"


def _is_of_compute(one: Listed, others: Sequence[Listed]) -> bool:
    """Whether it is known that the driver's lists have such a GPU."""
    if any(not source.startswith(_BY_PCI_ALONE) for source in one.named_by()):
        return True
    if _has_compute_class(one):
        return True
    extras = [reading.extra for _, reading in one.readings]
    if one.gpu.device_id is not None:
        if any(each.gpu.device_id == one.gpu.device_id for each in others):
            return True
        return PCI_ID in one.gpu.sources and one.gpu.arch is not None
    names = {extra["pci name"] for extra in extras if "pci name" in extra}
    return any(r.extra.get("pci name") in names for each in others for _, r in each.readings)


def _has_compute_class(one: Listed) -> bool:
    return any(reading.extra.get("pci class") in _OF_COMPUTE for _, reading in one.readings)


def _fewer(vendor: str, gpus: Sequence[Listed], found: Findings, count: int) -> Iterator[Unlisted]:
    """What a list without the others' names lacks: the number alone."""
    if count <= 0:
        return
    kinds = {each.gpu.device_id or _pci_name(each) for each in gpus}
    displays = not all(_has_compute_class(each) for each in gpus)
    doubt = "" if found.complete else _OPEN.format(found.kind)
    if not doubt and displays and (len(kinds) > 1 or None in kinds):
        doubt = "the machine may have display adapters, which such lists do not have"
    sources = dict.fromkeys(s for each in gpus for s in each.named_by() if s != found.kind)
    yield Unlisted(
        vendor=vendor,
        gpu=None,
        count=count,
        sources=tuple(sources),
        missing_in=found.kind,
        doubt=doubt,
    )


def _pci_name(one: Listed) -> str | None:
    names: Iterable[str | None] = (reading.extra.get("pci name") for _, reading in one.readings)
    return next(filter(None, names), None)
