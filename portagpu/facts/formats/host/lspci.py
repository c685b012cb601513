"""``lspci``, best with ``-nn`` for ids, ``-D`` for domains and ``-vvv`` for links (pciutils).

Without ``-nn`` a device's class and maker are words, and its product is the name of the ids'
database, or "Device 26b9" where that does not know the product. Without ``-D`` lspci leaves
domain 0 out where no device has another. ``LnkCap`` is what a device can do, ``LnkSta`` what its
link does now; root alone may read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape, integer, pci_address
from portagpu.facts.formats.events import HOST
from portagpu.facts.formats.pci import (
    CLASS_WORDS,
    generation,
    node_kind,
    transfer_rate,
    vendor_name,
    vendor_of_words,
)
from portagpu.facts.readings.model import (
    End,
    Event,
    Findings,
    FormatError,
    Link,
    Node,
    Pcie,
    Reading,
)
from portagpu.facts.vendors import vendor_named

KIND: Final = "lspci -nn"

_ADDRESS: Final = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DEVICE: Final = re.compile(
    rf"({_ADDRESS}) [^\[\]]{{1,80}}\[([0-9a-f]{{4}})\]: "
    r"(.{0,400}?) ?\[([0-9a-f]{4}):([0-9a-f]{4})\]"
)
_WITHOUT_IDS: Final = re.compile(
    rf"({_ADDRESS}) ([A-Z0-9][\w ,/-]{{2,60}})(?: \[[0-9a-f]{{4}}\])?: (\S.{{0,400}}?)"
    r"(?: \(rev [0-9a-f]{2}\))?(?: \(prog-if .{0,60}\))?\s*$"
)
_QUOTED: Final = re.compile(
    rf'({_ADDRESS}) "([^"]{{2,90}})" "([^"]{{1,200}})" "([^"]{{1,300}})"(?: -r([0-9a-f]{{2}}))?'
)
"""``-mm``: class, maker and product, each between quotes."""
_ID: Final = re.compile(r" ?\[?\b([0-9a-f]{4})\]?$")
_BEGINS_WITHOUT_IDS: Final = rf"{_ADDRESS} [A-Z0-9][\w ,/-]{{2,60}}: \S"
_UNNAMED: Final = re.compile(r"\bDevice ([0-9a-f]{4})$")
_NO_VENDOR_ID: Final = -1
_SILENT: Final = re.compile(r"\(rev ff\)|!!! Unknown header type 7f")
"""All ones in the place of its configuration: the device does not answer (pciutils, ls-caps.c)."""
_GROUP: Final = r"(?:IOMMU )?Group:? *\d{1,4}:? ?"
"""What scripts that list IOMMU groups print in front of a device, or above it."""
_GROUPED_DRIVER: Final = re.compile(r"[ (][Dd]river: ([\w-]{2,40})\)?\s*$")
_TREE: Final = r"-(?:\+-)?\[(?:[0-9a-f]{4}:)?[0-9a-f]{2}\]-"
"""How the tree of ``lspci -t`` begins: "-+-[0000:80]-+-00.0", or "-[0000:00]-+-00.0"."""
_DRIVERS: Final = "https://man7.org/linux/man-pages/man8/lspci.8.html"  # -k
_SOURCE: Final = "https://github.com/pciutils/pciutils/pull/91"

SHAPES: Final = (
    Shape(
        rf"{_ADDRESS} [^\[\]\n]{{1,80}}\[[0-9a-f]{{4}}\]: |{_BEGINS_WITHOUT_IDS}"
        rf'|{_ADDRESS} "[^"\n]{{2,90}}" "[^"\n]{{1,200}}" "'
        rf"|{_GROUP}(?: *\n)?{_ADDRESS} [A-Z0-9]",
        re.compile(rf"\s+\S|{_ADDRESS} |{_GROUP}|[0-9a-f]{{2,3}}:(?: [0-9a-f]{{2}}){{1,16}}\s*$"),
        last=re.compile(rf"{_ADDRESS} .*\(rev [0-9a-f]{{2}}\)"),
    ),
    Shape(
        r"Lnk(?:Cap|Sta):\s{1,4}(?:Port #\d{1,3}, )?Speed ",
        re.compile(r"\s*Lnk(?:Cap|Sta|Ctl)2?:|\s+\S"),
        weak=True,
        last=re.compile(r"\s*Lnk.*"),
    ),
    Shape(
        _TREE,
        re.compile(r"[ |]{0,200}[-+\\|]"),
        checks_its_end=True,
    ),
)
_SUBSYSTEM: Final = re.compile(r"\s{1,16}Subsystem: .{0,400}?\[[0-9a-f]{4}:([0-9a-f]{4})\]")
_BUSES: Final = re.compile(
    r"\s{1,16}Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate="
)
_LINK: Final = re.compile(r"\s{1,16}(LnkCap|LnkSta):\s.{0,80}?Speed ([^,]{1,24}), Width x(\d{1,2})")
_FACT: Final = re.compile(r"\s{1,16}(NUMA node|Kernel driver in use|Kernel modules): (\S{1,40})")


@dataclass(slots=True)
class _PciDevice:
    address: str
    node: Node
    vendor_id: int
    device_id: int | None
    name: str
    code: int
    secondary: str | None = None
    """The bus below a bridge, as "domain:bus"."""
    subsystem_id: int | None = None
    numa_node: int | None = None
    driver: str | None = None
    modules: str | None = None
    """The first driver that could serve it; lspci prints it after the one that does."""
    detailed: bool = False
    """Its subsystem is there: not the lines of drivers alone were chosen."""
    silent: bool = False
    """It does not answer: it sleeps, or it is lost."""
    links: dict[str, tuple[float | None, int]] = field(default_factory=dict)
    """(GT/s, lanes) of "LnkCap" and "LnkSta"."""

    def rate(self, which: str) -> float | None:
        return self.links[which][0] if which in self.links else None

    def width(self, which: str) -> int | None:
        # lspci prints x0 for a device without a link
        return (self.links[which][1] or None) if which in self.links else None


def matches(text: str) -> bool:
    """Whether the first lines that are not empty name PCI devices as lspci does."""
    lines = [_plain(line).strip() for line in text[:4000].splitlines() if line.strip()][:3]
    return any(map(re.compile(SHAPES[1].begins).match, lines[:1])) or any(
        _DEVICE.match(line) or _WITHOUT_IDS.match(line) or re.match(_TREE, line) for line in lines
    )


def parse(text: str) -> Findings:
    """The GPUs, NICs and switches, each with its link to what it is plugged into."""
    devices, problems = _read_devices(text)
    if not devices and (narrow := _links_alone(text)) is not None:
        return Findings(kind=KIND, events=narrow)
    if not devices and re.search(rf"^[ \t]*{_TREE}", text, re.MULTILINE):
        raise FormatError(
            "lspci -t states how buses are joined, and not what the devices are; give what "
            "`lspci -nn -D -vvv` prints for root"
        )
    if not devices:
        raise FormatError(f"{KIND}: no GPU, NIC or switch in it")
    buses = {device.secondary: device for device in devices if device.secondary is not None}
    readings, links = [], []
    for device in devices:
        bridge = buses.get(device.address[:7])
        bridge = None if bridge is device else bridge
        if device.node is Node.GPU and (reading := _reading(device, bridge)) is not None:
            readings.append(reading)
        if device.node is not Node.SWITCH or bridge is not None or device.secondary is None:
            links.append(_link(device, bridge))
    return Findings(
        kind=KIND,
        readings=tuple(readings),
        links=tuple(links),
        events=tuple(filter(None, map(_event, devices))),
        problems=tuple(problems),
    )


def _links_alone(text: str) -> tuple[Event, ...] | None:
    """An event for each link with fewer lanes than it can have; None without lines of links.

    Lines that grep took out of the list name no device.
    """
    events: list[Event] = []
    able: int | None = None
    found = False
    for line in text.splitlines():
        match = _LINK.match(f" {line.strip()}"[:400])
        if match is None:
            continue
        found = True
        which, _, lanes = match.groups()
        if which == "LnkCap":
            able = int(lanes)
            continue
        narrow = "(downgraded)" in line.rpartition("Width")[2]
        if (able is not None and 0 < int(lanes) < able) or (able is None and narrow):
            of = "fewer lanes than it could" if able is None else f"{lanes} of {able} lanes"
            events.append(
                Event(
                    source=KIND,
                    vendor=HOST,
                    code="narrow PCIe link",
                    meaning=f"a link has {of}, and the lines name no device",
                    action="see which device it is; look at its slot, and plug it in again",
                    todo=str(Action.MONITOR),
                    reference=_DRIVERS,
                    line=line.strip(),
                    unsettled=True,
                )
            )
        able = None
    return tuple(events) if found else None


def _cannot_compute(device: _PciDevice) -> str | None:
    """Why nothing can compute with the driver that has the GPU, as its vendor states it."""
    vendor = vendor_name(device.vendor_id)
    if vendor is None or device.node is not Node.GPU or device.driver is None:
        return None
    return vendor_named(vendor).unusable_drivers.get(device.driver)


def _event(device: _PciDevice) -> Event | None:
    if device.silent:
        code, line = "no answer on PCIe", f"{device.address} (rev ff)"
        meaning = "The device answers with all ones: it sleeps, as in laptops, or it is lost"
        action = "use it, and look again; if it stays, restart the machine, check slot and power"
    elif (
        device.modules is not None
        and device.detailed
        and device.driver is None
        and device.node is Node.GPU
        and vendor_name(device.vendor_id) is not None
    ):
        code, line = "no driver shown", f"{device.address} Kernel modules: {device.modules}"
        meaning = "The kernel has a driver for the device, and none that has taken it is shown"
        action = "see `lspci -k` without a filter, and what dmesg says of the driver"
    elif (cannot := _cannot_compute(device)) is not None:
        code, line = "driver without compute", f"{device.address} driver: {device.driver}"
        meaning, _, action = f"It {cannot}".partition(": ")
    else:
        return None
    return Event(
        source=KIND,
        vendor=HOST,
        code=code,
        meaning=meaning,
        action=action,
        todo=str(Action.MONITOR),
        reference=_SOURCE if device.silent or device.driver is None else _DRIVERS,
        line=line,
        pci=device.address,
        unsettled=True,
    )


def _read_devices(text: str) -> tuple[list[_PciDevice], list[str]]:
    devices: list[_PciDevice] = []
    problems = []
    device: _PciDevice | None = None
    grouped = re.search(rf"^[ \t]*{_GROUP}", text, re.MULTILINE) is not None
    for line in text.splitlines():
        line = _plain(line[:2000])
        if grouped and re.match(rf"\s+{_ADDRESS} [A-Z0-9]", line):
            line = line.lstrip()
        if line[:1] in (" ", "\t"):
            if device is not None:
                device.silent |= _SILENT.search(line) is not None
                _detail(device, line)
        elif line.strip():
            device = _device(line)
            if device is not None:
                device.silent = _SILENT.search(line) is not None
                if grouped and (driver := _GROUPED_DRIVER.search(line)) is not None:
                    device.driver = driver.group(1)
                devices.append(device)
            elif not (_DEVICE.match(line) or _WITHOUT_IDS.match(line)) and re.match(_ADDRESS, line):
                problems.append(f"this line names no device: {line[:60]!r}")
    return devices, problems


def _plain(line: str) -> str:
    """A line of ``-mm``, or of a group, as lspci prints it alone; another line as it is."""
    if line.startswith(("IOMMU Group", "Group")):
        line = re.sub(rf"\A{_GROUP}", "", line).lstrip()
    match = _QUOTED.match(line)
    if match is None:
        return line
    address, *words, revision = match.groups()
    ids = [_ID.search(word) for word in words]
    kind, maker, product = (_ID.sub("", word) for word in words)
    end = "" if revision is None else f" (rev {revision})"
    if None in ids:
        return f"{address} {words[0]}: {words[1]} {words[2]}{end}"
    code, vendor, device = (each[1] for each in ids if each is not None)
    return f"{address} {kind or 'Class'} [{code}]: {maker} {product} [{vendor}:{device}]{end}"


def _device(line: str) -> _PciDevice | None:
    match = _DEVICE.match(line)
    address = pci_address(match.group(1)) if match is not None else None
    if match is None or address is None:
        return _device_without_ids(line)
    code, vendor_id, device_id = (int(match.group(n), 16) for n in (2, 4, 5))
    node = node_kind(code, vendor_id)
    if node is None:
        return None
    return _PciDevice(address, node, vendor_id, device_id, match.group(3), code)


def _device_without_ids(line: str) -> _PciDevice | None:
    match = _WITHOUT_IDS.match(line)
    address = pci_address(match.group(1)) if match is not None else None
    if match is None or address is None:
        return None
    name = match.group(3)
    code = CLASS_WORDS.get(match.group(2))
    vendor = vendor_of_words(name)
    # what no vendor of GPUs made is another's display adapter
    vendor_id = _NO_VENDOR_ID if vendor is None else vendor_named(vendor).pci_ids[0]
    node = node_kind(code, vendor_id)
    if node is None or code is None:
        return None
    stated_id = _UNNAMED.search(name)
    device_id = int(stated_id.group(1), 16) if stated_id is not None else None
    return _PciDevice(address, node, vendor_id, device_id, name, code)


def _detail(device: _PciDevice, line: str) -> None:
    device.detailed |= line.lstrip().startswith("Subsystem: ")
    if (match := _LINK.match(line)) is not None:
        device.links[match.group(1)] = (transfer_rate(match.group(2)), int(match.group(3)))
    elif (match := _SUBSYSTEM.match(line)) is not None:
        device.subsystem_id = int(match.group(1), 16)
    elif (match := _BUSES.match(line)) is not None:
        device.secondary = f"{device.address[:5]}{match.group(1)}"
    elif (match := _FACT.match(line)) is not None:
        if match.group(1) == "NUMA node":
            device.numa_node = integer(match.group(2))
        elif match.group(1) == "Kernel modules":
            device.modules = match.group(2).rstrip(",")
        else:
            device.driver = match.group(2)


def _reading(device: _PciDevice, bridge: _PciDevice | None) -> Reading | None:
    vendor = vendor_name(device.vendor_id)
    if vendor is None:
        return None
    able, can = generation(device.rate("LnkCap")), device.width("LnkCap")
    slot = generation(bridge.rate("LnkCap")) if bridge is not None else None
    wide = bridge.width("LnkCap") if bridge is not None else None
    return Reading(
        source=KIND,
        vendor=vendor,
        pci=device.address,
        device_id=device.device_id,
        subsystem_id=device.subsystem_id,
        numa_node=device.numa_node,
        driver=device.driver,
        pcie=Pcie(
            generation=generation(device.rate("LnkSta")),
            width=device.width("LnkSta"),
            device_generation=able,
            device_width=can,
            max_generation=min(able, slot) if able is not None and slot is not None else None,
            max_width=min(can, wide) if can is not None and wide is not None else None,
        ),
        # the name of the ids' database, not the one that the device gives itself
        extra={"pci name": device.name, "pci class": f"{device.code:04x}"},
    )


def _link(device: _PciDevice, bridge: _PciDevice | None) -> Link:
    if bridge is not None:
        other = End(Node.SWITCH, bridge.address, bridge.address)
    elif device.numa_node is not None:
        other = End(Node.CPU, f"node {device.numa_node}", index=device.numa_node)
    else:
        other = End(Node.CPU, "host")
    return Link(
        source=KIND,
        a=End(device.node, device.address, device.address),
        b=other,
        kind="pcie",
        width=device.width("LnkSta"),
        speed_gbit_s=device.rate("LnkSta"),
    )
