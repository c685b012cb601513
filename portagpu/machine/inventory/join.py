"""Join the readings of several sources to one machine.

Sources number GPUs differently: a management library, the runtime and the kernel each have an order
of their own. So readings are joined by PCI address, UUID, the hardware's own number or the device
file. An index joins only readings of one tool, which uses the same numbers in all its outputs. Time
grows linearly with the number of readings.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import RecordingError
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.readings.model import Reading
from portagpu.machine.inventory.gpu import PCI_ID, Gpu, Inventory
from portagpu.machine.inventory.kernel import KIND as PCI
from portagpu.machine.inventory.merge import Counted, Listed, find_unlisted, merge_readings

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from portagpu.facts.readings.model import Findings

MAX_GPUS: Final = 1024
"""In one machine, or in all machines that one fabric joins: the largest have 576."""
_NO_LISTS: Final = frozenset({PCI_ID, kernel_log.KIND, kernel_log.UNREAD})
"""Kinds that do not list the machine's GPUs."""
_LISTS_OF_PCI: Final = frozenset({PCI, "lspci -nn"})
# ROCr's UUID is the hardware's number in sixteen digits, which the kernel states as a number
_NUMBERED_UUID: Final = re.compile(r"gpu-([0-9a-f]{16})")


def too_many_message(count: int, what: str) -> str:
    """The error message for more devices than a machine has."""
    return (
        f"{count} {what} are stated, more than the {MAX_GPUS} that any machine has: "
        "give recordings of one machine"
    )


@dataclass(eq=False, slots=True)
class _Group:
    """Readings of one GPU, each with the number of its Findings, and the keys that find it."""

    vendor: str
    pci: str | None = None
    ids: set[Hashable] = field(default_factory=set)
    keys: list[Hashable] = field(default_factory=list)
    readings: list[tuple[int, Reading]] = field(default_factory=list)


def join(findings: Sequence[Findings]) -> Inventory:
    """The machine that ``findings`` describe; where they contradict each other, the first counts.

    What cannot be joined becomes a sentence in ``problems``. Raises RecordingError for more than
    ``MAX_GPUS``.
    """
    joiner = _Joiner(findings)
    groups = joiner.groups()
    if len(groups) > MAX_GPUS:
        raise RecordingError(too_many_message(len(groups), "GPUs"))
    versions: dict[str, str] = {}
    for each in findings:
        for name, version in each.versions.items():
            if name != "driver" or not groups:
                versions.setdefault(name, version)
    # of one tool, some outputs name the GPUs and others the driver
    unplaced = {
        _tool(each.kind): (number, each.versions["driver"])
        for number, each in reversed(list(enumerate(findings)))
        if "driver" in each.versions and not each.readings
    }
    gpus = [_gpu(group, findings, unplaced) for group in groups]
    listed = [
        Listed(gpu, group.readings, frozenset(number for number, _ in group.readings))
        for gpu, group in zip(gpus, groups, strict=True)
    ]
    return Inventory(
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.pci is None, gpu.pci or ""))),
        links=tuple(link for each in findings for link in each.links),
        events=tuple(event for each in findings for event in each.events),
        versions=versions,
        kinds=tuple(dict.fromkeys(each.kind for each in findings)),
        problems=tuple(
            dict.fromkeys([*(p for each in findings for p in each.problems), *joiner.problems])
        ),
        breaks_off=_breaks_off(findings, groups),
        unlisted=tuple(find_unlisted(findings, listed, joiner.counted)),
        unpaired=_unpaired(listed),
    )


def _breaks_off(findings: Sequence[Findings], groups: Collection[_Group]) -> bool:
    """Whether a source breaks off and no complete source lists every GPU.

    PCI has GPUs that the driver may not serve: it does not complete a list of the driver's.
    """
    cut = [each for each in findings if each.breaks_off]
    if not cut:
        return False
    of_a_driver = any(each.complete is not None for each in cut)
    listed = Counter(
        number for group in groups for number in {number for number, _ in group.readings}
    )
    return not any(
        listed[number] == len(groups)
        for number, each in enumerate(findings)
        if each.readings and not each.breaks_off and each.kind not in _NO_LISTS
        if each.complete is not None or not of_a_driver
    )


def _gpu(
    group: _Group, findings: Sequence[Findings], unplaced: Mapping[str, tuple[int, str]]
) -> Gpu:
    drivers = {
        number: findings[number].versions["driver"]
        for number, _ in group.readings
        if "driver" in findings[number].versions
    }
    if not drivers:
        tools = dict.fromkeys(_tool(reading.source) for _, reading in group.readings)
        drivers = dict(unplaced[tool] for tool in tools if tool in unplaced)
    readings: dict[int, list[Reading]] = {}
    for number, reading in sorted(group.readings, key=lambda pair: pair[0]):
        readings.setdefault(number, []).append(reading)
    return merge_readings(group.vendor, group.pci, readings, drivers)


class _Joiner:
    """Groups readings by GPU; finds the group of a reading by its keys."""

    def __init__(self, findings: Sequence[Findings]) -> None:
        self.problems: list[str] = []
        self.counted: dict[tuple[int, str], Counted] = {}
        self._by_key: dict[Hashable, _Group] = {}
        self._order: dict[int, _Group] = {}
        numbered = [(n, r) for n, each in enumerate(findings) for r in each.readings]
        # a function that PCI itself lists as a GPU is one; any other belongs to function 0
        self._listed = {r.pci for _, r in numbered if r.source in _LISTS_OF_PCI}
        self._addresses = {r.pci for _, r in numbered if r.pci is not None}
        # an index says something only when its tool has shown where its GPUs are
        numbered.sort(key=lambda pair: pair[1].pci is None and not _identities(pair[1]))
        nameless: dict[tuple[int, str], list[Reading]] = {}
        for number, reading in numbered:
            if not self._place(number, reading):
                nameless.setdefault((number, reading.vendor), []).append(reading)
        for (number, vendor), readings in nameless.items():
            self._count(number, vendor, readings)

    def groups(self) -> Collection[_Group]:
        return self._order.values()

    def _same_index_groups(
        self, reading: Reading, ids: set[Hashable], pci: str | None
    ) -> list[_Group]:
        """The GPU that has this index in the same tool, unless an identity contradicts it."""
        group = self._by_key.get(_index_key(reading)) if reading.index is not None else None
        if group is None or _contradict(group.ids, ids):
            return []
        return [] if pci is not None and group.pci not in (None, pci) else [group]

    def _place(self, number: int, reading: Reading) -> bool:
        """Add the reading to the group of its GPU; return False if nothing identifies the GPU."""
        pci = self._address(reading)
        ids = _identities(reading)
        # in one order at every run: the first decides where identities contradict each other
        keys: list[Hashable] = sorted(ids, key=str)
        if pci is not None:
            keys.insert(0, ("pci", pci))
        if reading.device_file is not None:
            keys.append(("file", reading.device_file))
        found = list(dict.fromkeys(self._by_key[key] for key in keys if key in self._by_key))
        if not found:
            found = self._same_index_groups(reading, ids, pci)
        if not found and not ids and pci is None:
            return False
        group = self._unite(found, pci, reading)
        group.pci = group.pci or pci
        group.ids.update(ids)
        group.readings.append((number, reading))
        for key in (*keys, *([_index_key(reading)] if reading.index is not None else [])):
            if self._by_key.setdefault(key, group) is group:
                group.keys.append(key)
        return True

    def _unite(self, found: list[_Group], pci: str | None, reading: Reading) -> _Group:
        """The union of the groups that the reading belongs to; two addresses are never one GPU."""
        fitting = [g for g in found if pci is None or g.pci in (None, pci)]
        if len(fitting) < len(found):
            other = next(g for g in found if g not in fitting)
            self.problems.append(
                f"{reading.source} gives the GPUs at {other.pci} and {pci} one identity: "
                "they are kept apart by address"
            )
        if not fitting:
            group = _Group(reading.vendor)
            self._order[id(group)] = group
            return group
        first, *rest = fitting
        for other in rest:
            if first.pci is not None and other.pci not in (None, first.pci):
                self.problems.append(
                    f"{reading.source} gives one GPU the identities of those at {first.pci} and "
                    f"{other.pci}: it is taken for the former"
                )
                continue
            first.pci = first.pci or other.pci
            first.ids |= other.ids
            first.readings.extend(other.readings)
            first.keys.extend(other.keys)
            del self._order[id(other)]
            self._by_key.update(dict.fromkeys(other.keys, first))
        return first

    def _address(self, reading: Reading) -> str | None:
        """The address of the reading's GPU: a partition may have another function of it."""
        pci = reading.pci
        if pci is None or pci.endswith(".0") or pci in self._listed:
            return pci
        whole = f"{pci[:-1]}0"
        if whole not in self._addresses:
            return pci
        group = self._by_key.get(("pci", whole))
        ids = _identities(reading)
        return pci if group is not None and _contradict(group.ids, ids) else whole

    def _count(self, number: int, vendor: str, readings: list[Reading]) -> None:
        """Readings that nothing joins: they are the GPUs that their source has not shown yet.

        What all of them agree on holds for each of those; what is left over are more GPUs.
        """
        readings = [reading for reading in readings if not self._place(number, reading)]
        if not readings:
            return
        unseen = [
            group
            for group in self._order.values()
            if group.vendor == vendor and all(n != number for n, _ in group.readings)
        ]
        shared = 0
        kinds = [_product_traits(reading) for reading in readings]
        nothing = Reading(source=kinds[0].source, vendor=vendor)
        if all(kind == kinds[0] for kind in kinds) and kinds[0] != nothing:
            for group, kind in zip(unseen, kinds, strict=False):
                group.readings.append((number, kind))
                shared += 1
        self.counted[number, vendor] = Counted(len(readings), shared)
        for reading in readings[len(unseen) :]:
            group = _Group(vendor, readings=[(number, reading)])
            self._order[id(group)] = group
            if (
                reading.index is not None
                and self._by_key.setdefault(_index_key(reading), group) is group
            ):
                group.keys.append(_index_key(reading))


def _index_key(reading: Reading) -> Hashable:
    """The key of the reading's index in the order of its tool."""
    return ("order", reading.vendor, _tool(reading.source), reading.index)


def _tool(source: str) -> str:
    """The name of the program in a source: "nvidia-smi" for "nvidia-smi -q (load)"."""
    return source.split(" ")[0]


def _product_traits(reading: Reading) -> Reading:
    """The traits in a reading that all devices of the product share."""
    return Reading(
        source=reading.source,
        vendor=reading.vendor,
        name=reading.name,
        arch=reading.arch,
        warp_size=reading.warp_size,
        memory_bytes=reading.memory_bytes,
        unit_count=reading.unit_count,
    )


def _identities(reading: Reading) -> set[Hashable]:
    """Identities of the hardware: the vendor's UUID and the hardware's own number."""
    found: set[Hashable] = set()
    if reading.unique_id is not None:
        found.add(("number", reading.vendor, reading.unique_id))
    if reading.uuid is not None:
        uuid = reading.uuid.lower()
        number = _NUMBERED_UUID.fullmatch(uuid)
        if number is None:
            found.add(("uuid", uuid))
        elif int(number.group(1), 16):
            found.add(("number", reading.vendor, int(number.group(1), 16)))
    return found


def _contradict(one: set[Hashable], two: set[Hashable]) -> bool:
    return bool(one and two and one.isdisjoint(two))


def _unpaired(listed: Sequence[Listed]) -> int:
    """How many GPUs may be in ``listed`` twice: once by UUID alone, and once by address alone."""
    found = 0
    for vendor in {each.gpu.vendor for each in listed}:
        gpus = [each.gpu for each in listed if each.gpu.vendor == vendor]
        by_uuid = sum(gpu.pci is None and gpu.uuid is not None for gpu in gpus)
        by_address = sum(gpu.pci is not None and gpu.uuid is None for gpu in gpus)
        found += min(by_uuid, by_address)
    return found
