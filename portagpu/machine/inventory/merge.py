"""What several sources say of one GPU: the first known value counts, contradictions are reported,
and so are GPUs that a list of what their driver serves lacks.

PCI, KFD, a log or an older list still name a GPU that its driver no longer serves. Only a list of
all devices that the driver serves (``Findings.complete``) can lack one. Why a GPU may be missing
there without a fault has its evidence here: it is passed through to a virtual machine, it is a
virtual function, no list of that driver ever has such products, or another list has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from portagpu.base.errors import TargetError
from portagpu.facts.arch import base_name
from portagpu.facts.host.gpus import sum_if_known
from portagpu.facts.readings.model import GpuPart, Reading, first_known
from portagpu.facts.targets import identify
from portagpu.facts.targets.model import normalise
from portagpu.facts.vendors import vendor_named, vendors
from portagpu.machine.inventory.gpu import PCI_ID, Gpu, Unlisted, product_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from portagpu.facts.readings.model import Findings


_T = TypeVar("_T")

# Sources state one memory with and without what the driver keeps for itself: by 0.6 % on an H100
# (81559 MiB by nvidia-smi, 85018279936 B by torch).
_MEMORY_TOLERANCE: Final = 0.02
_SOURCE_FIELDS: Final = ("source", "vendor", "index", "pci", "extra", "missing")
_WHOLE: Final = (None, "SPX")
_FAULT_COUNTS: Final = (
    "corrected", "uncorrected", "corrected_total", "uncorrected_total", "by_block",
    "retired_pages", "remapped_rows", "pending", "remap_failed", "exhausted_banks",
    "beyond_repair", "replays",
)  # fmt: skip
"""Faults and their counts: the largest value is taken, and True before False."""
_TROUBLE: Final = ("recovery", "error", "throttling", "fabric_wait", "fabric_error")
"""Values that a GPU has only while it is in trouble: any reading that has one is taken."""
_HEALTH_FIELDS: Final = ("memory", "state", "pcie")


def merge_readings(
    vendor: str,
    pci: str | None,
    readings: Mapping[int, Sequence[Reading]],
    drivers: Mapping[int, str],
) -> Gpu:
    """The GPU of ``readings``, which are by the number of their Findings, as are ``drivers``.

    Several readings of one Findings are the GPU's parts, unless they repeat one another.
    """
    memory = next(
        (r.memory_bytes for each in readings.values() if len(each) == 1 for r in each), None
    )
    by_number = {number: _whole_gpu(each, memory) for number, each in readings.items()}
    each = list(by_number.values())
    values: dict[str, Any] = {
        field.name: (_worst_value if field.name in _HEALTH_FIELDS else first_known)(
            [getattr(reading, field.name) for reading in each]
        )
        for field in fields(Reading)
        if field.name not in _SOURCE_FIELDS
    }
    values["name"] = next((name for r in each if (name := product_name(r.name))), None)
    values["uuid"] = _runtime_uuid(each)
    values["parts"] = _parts([r.parts for r in each])
    if values["compute_partition"] in _WHOLE and not values["mig_enabled"]:
        values["parts"] = values["parts"] if len(values["parts"]) > 1 else ()
    return Gpu(
        vendor=vendor,
        pci=pci,
        **values,
        driver_version=next(iter(drivers.values()), None),
        indices={r.source: r.index for r in reversed(each) if r.index is not None},
        sources=tuple(dict.fromkeys(r.source for r in each)),
        disagreements=tuple(_disagreements(vendor, by_number, drivers)),
    )


def _whole_gpu(readings: Sequence[Reading], memory: int | None) -> Reading:
    """One reading of the whole GPU; ``memory`` is the whole GPU's, from another source."""
    distinct: dict[Any, list[Reading]] = {}
    numbered = {reading.pci: reading.index for reading in readings if reading.index is not None}
    for reading in readings:
        own: Any = reading.index
        if own is None and reading.device_file is None and reading.pci in numbered:
            # a list of processes or pages names the GPU by its address alone
            own = numbered[reading.pci]
        elif own is None:
            own = (reading.pci, reading.device_file)
        distinct.setdefault(own, []).append(reading)
    apart: list[Reading] = [_merge_repeats(repeated) for repeated in distinct.values()]
    if len(apart) == 1:
        return apart[0]
    parts = tuple(
        GpuPart(
            index=index,
            uuid=reading.uuid if reading.uuid != apart[0].uuid else None,
            profile=reading.compute_partition,
            memory_bytes=_own_memory(reading.memory_bytes, memory),
            unit_count=reading.unit_count,
            device_file=reading.device_file,
        )
        for index, reading in enumerate(apart)
    )
    return replace(
        apart[0],
        memory_bytes=sum_if_known(part.memory_bytes for part in parts),
        unit_count=sum_if_known(part.unit_count for part in parts),
        device_file=None,
        parts=parts,
    )


def _merge_repeats(readings: Sequence[Reading]) -> Reading:
    """Several readings of one device as one."""
    worst: dict[str, Any] = {
        name: _worst_value([getattr(reading, name) for reading in readings])
        for name in _HEALTH_FIELDS
    }
    return replace(first_known(readings), **worst) if len(readings) > 1 else readings[0]


def _own_memory(part: int | None, whole: int | None) -> int | None:
    """A part's memory; None if its source states the whole GPU's memory for each part."""
    return None if part is not None and whole is not None and _same_size(part, whole) else part


def _worst_value(values: Sequence[Any]) -> Any:
    """The first known value; of faults and counts the worst.

    Two outputs of one GPU may lie hours apart. An error in one of them counts, whatever the other
    says.
    """
    found = first_known(values)
    changed: dict[str, Any] = {}
    for name in _FAULT_COUNTS:
        stated = [v for each in values if (v := getattr(each, name, None)) is not None]
        if len(stated) > 1:
            changed[name] = _largest(stated)
    for name in _TROUBLE:
        changed |= {name: said} if (said := _first_true(values, name)) else {}
    return replace(found, **changed) if changed else found


def _largest(stated: Sequence[Any]) -> Any:
    if not isinstance(stated[0], Mapping):
        return max(stated)
    keys = dict.fromkeys(key for each in stated for key in each)
    return {key: _largest_pair([each[key] for each in stated if key in each]) for key in keys}


def _largest_pair(stated: Sequence[Any]) -> Any:
    """The larger of numbers; of (corrected, uncorrected) the larger of each."""
    if not isinstance(stated[0], tuple):
        return max(stated)
    known = [[n for n in numbers if n is not None] for numbers in zip(*stated, strict=True)]
    return tuple(max(numbers, default=None) for numbers in known)


def _first_true(values: Sequence[Any], name: str) -> Any:
    return next((said for each in values if (said := getattr(each, name, None))), None)


def _runtime_uuid(readings: Sequence[Reading]) -> str | None:
    """The UUID in the form of the vendor's runtime, else any."""
    known = [reading.uuid for reading in readings if reading.uuid is not None]
    prefix = vendor_named(readings[0].vendor).uuid_prefix.lower()
    return next(
        (uuid for uuid in known if uuid.lower().startswith(prefix)), next(iter(known), None)
    )


def _parts(found: Sequence[tuple[GpuPart, ...]]) -> tuple[GpuPart, ...]:
    """The longest list of parts, completed by others: by number, or all of the same length."""
    longest = max(found, key=len, default=())
    numbers = {part.index for part in longest}
    joined = list(longest)
    for parts in found:
        own = {part.index: part for part in parts}
        if None not in numbers and len(own) == len(parts) and own.keys() <= numbers:
            joined = [first_known([part, own.get(part.index, part)]) for part in joined]
        elif len(parts) == len(joined):
            joined = [first_known(pair) for pair in zip(joined, parts, strict=True)]
    return tuple(joined)


def _same_size(one: int, two: int) -> bool:
    return abs(one - two) <= _MEMORY_TOLERANCE * max(one, two)


def _disagreements(
    vendor: str, readings: Mapping[int, Reading], drivers: Mapping[int, str]
) -> Iterable[str]:
    each = list(readings.values())
    asked = [r for r in each if r.source != PCI_ID]
    arch = next((r.arch for r in each if r.arch), None)

    def same_name(one: str, two: str) -> bool:
        return _same_product(vendor, arch, one, two)

    yield from _contradiction(
        "name", [(r.source, product_name(r.name)) for r in asked], str, same_name
    )
    # spelt as the runtime does; a tool's own number for a GPU is another thing
    prefix = vendor_named(vendor).uuid_prefix.lower()
    uuids = [(r.source, r.uuid.lower() if r.uuid else None) for r in each]
    spelt = [(source, uuid) for source, uuid in uuids if uuid and uuid.startswith(prefix)]
    yield from _contradiction(
        "UUID", spelt, str, lambda one, two: one == two or len(one) != len(two)
    )
    yield from _contradiction(
        "architecture",
        [(r.source, r.arch) for r in each],
        str,
        lambda one, two: base_name(one) == base_name(two),
    )
    yield from _contradiction(
        "memory",
        [(r.source, r.memory_bytes) for r in each],
        lambda size: f"{size / 2**30:.1f} GiB",
        _same_size,
    )
    driver_versions = [(r.source, drivers.get(number)) for number, r in readings.items()]
    yield from _contradiction("driver's version", driver_versions, str, _equal)
    for what, attribute in (
        ("number of units", "unit_count"),
        ("PCI device id", "device_id"),
        ("kernel driver", "driver"),
        ("compute partitioning", "compute_partition"),
        ("memory partitioning", "memory_partition"),
    ):
        shown: Callable[[Any], str] = hex if attribute == "device_id" else str
        stated = [(r.source, getattr(r, attribute)) for r in each]
        yield from _contradiction(what, stated, shown, _equal)
    counts = [(r.source, len(r.parts) or None) for r in each]
    yield from _contradiction("number of parts", counts, str, _equal)


def _equal(one: Any, two: Any) -> bool:
    return bool(one == two)


def _contradiction(
    what: str,
    stated: Iterable[tuple[str, _T | None]],
    shown: Callable[[_T], str],
    same: Callable[[_T, _T], bool],
) -> Iterable[str]:
    """A sentence if a known value differs from the first one."""
    values: list[tuple[_T, list[str]]] = []
    for source, value in stated:
        if value is None:
            continue
        for known, sources in values:
            if same(known, value):
                sources.append(source)
                break
        else:
            values.append((value, [source]))
    if len(values) > 1:
        words = [f"{shown(value)} by {_join_words(sources)}" for value, sources in values]
        yield f"its {what} is {_join_words(words)}"


def _join_words(words: Sequence[str]) -> str:
    once = list(dict.fromkeys(words))
    return " and ".join((", ".join(once[:-1]), once[-1])) if len(once) > 1 else once[0]


def _same_product(vendor: str, arch: str | None, one: str, two: str) -> bool:
    """Whether two names may be one product: one is less precise, or both are of one target."""
    words = [set(normalise(name).split()) - {vendor, *vendors()} for name in (one, two)]
    if words[0] <= words[1] or words[1] <= words[0]:
        return True
    if arch is None:
        return False
    try:
        targets = {identify(vendor, arch, name) for name in (one, two)}
    except TargetError:
        return True
    return len(targets) == 1 and all(target and target.product for target in targets)


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
            having = [one for one in present if number in one.numbers]
            if not each.complete:
                # an earlier list of the same tool and the same GPUs is of a time before
                earlier = {n for one in having for n in one.numbers if n < number}
                before = {n for n, other in lists if n in earlier and other.kind == each.kind}
                others = {n for n, _ in lists} - before
                absent = [one for one in absent if not others & one.numbers]
            # two may be the same GPU if they have no name in common, and no source has both
            known = {(_named_by(one), frozenset(one.numbers)) for one in absent}
            same = sum(
                any(
                    names.isdisjoint(_named_by(one)) and one.numbers.isdisjoint(n)
                    for names, n in known
                )
                for one in having
            )
            if same:
                yield from _fewer(vendor, absent, each, len(absent) - same)
                continue
            again = {n for n, other in lists if other.kind == each.kind and n != number}
            for one in absent:
                if id(one) not in seen:
                    seen.add(id(one))
                    yield _missing(one, having, each, again=bool(again & one.numbers))


def _named_by(one: Listed) -> frozenset[str]:
    """What names the GPU."""
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
    """Why a complete list may lack this GPU without a fault; empty without a reason."""
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
