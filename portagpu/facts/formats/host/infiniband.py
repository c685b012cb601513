"""``ibstat``, ``ibstatus``, ``ibv_devinfo``, ``ibdev2netdev`` and ``ibportstate``: RDMA ports.

``State`` is what the subnet manager made of a port, or the network's driver of one of Ethernet;
``Physical state`` is the cable. A port that has a LID was in service since the driver was loaded. A
port without one that is down may be unused: many cards have a second one without a cable.
``ibdev2netdev`` states the network interface alone ("Down" without an address on it, while the port
works), and with ``-v`` the port's state before the arrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape, integer, number, within_device_limit
from portagpu.facts.formats.events import HOST
from portagpu.facts.readings.model import End, Event, Findings, FormatError, Link, Node

KIND: Final = "ibstat"

_DEVICE: Final = r"CA:? '[\w.-]{1,64}'"
_STATUS: Final = r"Infiniband device '[\w.-]{1,64}' port \d{1,3} status:"
_VERBS: Final = r"hca_id:\s{1,8}[\w.-]{1,64}"
"""Of ibv_devinfo (libibverbs/examples/devinfo.c), which has "PORT_DOWN (1)" for "Down"."""
_PORT_INFO: Final = r"(?:CA/RT|Switch) PortInfo:|# Port info: Lid \d{1,5} port \d{1,3}"
"""Of ibportstate and smpquery, whose labels and values have dots between them."""
_PORT: Final = re.compile(r"(?:Port |port:\s{1,8})(\d{1,3}):?$")
_STATES: Final = {"port_active": "active", "port_down": "down", "port_init": "init"}
_LABELS: Final = {
    "physstate": "physicalstate",
    "portlid": "baselid",
    "linkstate": "state",
    "physlinkstate": "physicalstate",
    "lid": "baselid",
}
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z _]{1,24}):\s*(\S.{0,80}?)?\s*$")
_RDMA_LINK: Final = re.compile(
    r"(?:\d{1,4}/\d{1,3}: |link )([\w.-]{1,64})/(\d{1,3}):? .{0,200}?"
    r"\bstate ([A-Z]{2,12}) physical_state ([A-Z_]{2,30})"
)
"""Of ``rdma link`` (iproute2)."""
_IS_RDMA_LINK: Final = r"link [\w.-]{1,64}/\d{1,3} [^\n]{0,200}state [A-Z]{2,12} physical_state "
_DOTS: Final = re.compile(r":\.{2,60}(?=\S)")
_IS_STATES: Final = (
    r"Port \d{1,3}:[ \t]*(?=\n\s*State: )"
    r"|State: (?:Active|Down|Init\w{0,12}|Armed)[ \t]*(?=\n\s*Physical state: )"
)
"""What ``grep`` left of ibstat, without the device's line."""
_NETDEV: Final = re.compile(
    r"(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] +)?([\w.-]{1,64}) +"
    r"(?:\([^()]{1,80}\) .{0,100}?)?port +(\d{1,3}) +(?:\((\w{2,12}) *\) +)?"
    r"==> +([\w.@:-]{1,32}) +\((Up|Down)\)"
)
_IS_NETDEV: Final = r"[^\n]{1,200} port +\d{1,3} [^\n]{0,20}==> [^\n]{1,40}\((?:Up|Down)\)"
_PANIC: Final = re.compile(r"ibpanic: .{0,80}stat of IB device '([\w.-]{1,64})' failed: (.{1,80})")
SHAPES: Final = (
    Shape(
        rf"(?:{_DEVICE}|{_STATUS}|{_VERBS}|ibpanic: |{_PORT_INFO}|{_IS_RDMA_LINK}|{_IS_STATES})"
        rf"|{_IS_NETDEV}",
        re.compile(
            r"\s*(?:CA type|Number of ports|Firmware version|Hardware version|Node GUID"
            r"|System image GUID|Port \d|State|Physical state|Rate|Base lid|LMC|SM lid"
            r"|Capability mask|Port GUID|Link layer|default gid|base lid|sm lid|state|phys state"
            r"|rate|link_layer)\b.{0,100}|[ \t]+[a-z][a-z_]{1,30}:\s+\S.{0,80}"
            r"|[ \t]+[A-Z][A-Za-z _-]{1,40}: \S.{0,80}|[A-Z]\w{1,40}:\.{2,60}\S.{0,80}"
            rf"|{_PORT_INFO}|{_IS_RDMA_LINK}"
            r"|\s*(?:ibpanic: .*|" + f"{_DEVICE}|{_STATUS}|{_VERBS}|{_IS_NETDEV})"
        ),
        checks_its_end=True,
    ),
)
_NO_LID: Final = frozenset({None, 0, 0xFFFF})
_LAYERS: Final = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_SOURCE: Final = "https://github.com/linux-rdma/rdma-core/blob/master/infiniband-diags/ibstat.c"


@dataclass(frozen=True, slots=True)
class _PortText:
    device: str
    number: str
    facts: dict[str, str] = field(default_factory=dict)
    """Labels in lower case, without blanks: "state", "physicalstate" of both tools."""

    @property
    def name(self) -> str:
        return f"{self.device} port {self.number}" if self.number else self.device

    @property
    def state(self) -> str:
        """ "active", "down", "init" or "armed"; "" where it is not stated."""
        said = self.facts.get("state", "").rpartition(":")[2].partition("(")[0].strip().lower()
        return _STATES.get(said, said.removeprefix("port_"))

    @property
    def cable(self) -> str:
        """ "linkup", "polling", "disabled" and others; "" where it is not stated."""
        said = self.facts.get("physicalstate", "").rpartition(":")[2].partition("(")[0]
        return said.strip().lower().replace("_", "")

    @property
    def was_in_service(self) -> bool:
        return integer(self.facts.get("baselid")) not in _NO_LID


def matches(text: str) -> bool:
    """Whether a line names a device or a port as one of the tools does."""
    begins = rf"^[ \t]*(?:{_DEVICE}\s*$|{_STATUS}|{_VERBS}\s*$|ibpanic: |{_PORT_INFO}"
    begins += rf"|{_IS_RDMA_LINK}|{_IS_STATES}|{_IS_NETDEV})"
    return re.search(begins, text[:4000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """A link for each port, and an event for each that carries no data though it should."""
    ports: list[_PortText] = []
    events: list[Event] = []
    device = ""
    # the LID that a switch has says nothing of its port
    is_switch = "Switch PortInfo" in text
    for line in map(str.strip, _DOTS.sub(": ", text).splitlines()):
        if (panic := _PANIC.match(line)) is not None:
            events.append(_lost(panic.group(1), panic.group(2), line))
        elif named := re.match(r"CA:? '([\w.-]{1,64})'|hca_id:\s{1,8}([\w.-]{1,64})$", line):
            device = named.group(1) or named.group(2)
        elif rdma := _RDMA_LINK.match(line):
            ports.append(_PortText(rdma[1], rdma[2], {"state": rdma[3], "physicalstate": rdma[4]}))
        elif info := re.match(r"# Port info: (Lid \d{1,5}) port (\d{1,3})", line):
            ports.append(_PortText(info.group(1), info.group(2)))
            if is_switch:
                ports[-1].facts["baselid"] = "0"
        elif status := re.match(r"Infiniband device '([\w.-]{1,64})' port (\d{1,3})", line):
            ports.append(_PortText(status.group(1), status.group(2)))
        elif (port := _PORT.match(line)) is not None:
            ports.append(_PortText(device or f"entry {len(ports) + 1}:", port.group(1)))
        elif line.startswith("State: ") and _is_of_another_port(ports, device):
            ports.append(_PortText(device or f"port {len(ports) + 1} in the list", ""))
            ports[-1].facts["state"] = line.partition(": ")[2]
        elif (netdev := _NETDEV.match(line)) is not None:
            name, port_number, state, interface, is_up = netdev.groups()
            facts = {} if state is None else {"state": state, "physicalstate": ""}
            ports.append(_PortText(name, port_number, facts | {"interface": interface}))
            if is_up == "Down" and state is None:
                events.append(_interface_down(ports[-1].name, interface, line))
        elif ports and (stated := _FIELD.match(line)) is not None and stated.group(2):
            label = re.sub(r"[ _]", "", stated.group(1)).lower()
            ports[-1].facts.setdefault(_LABELS.get(label, label), stated.group(2))
    ports = list(within_device_limit(ports, KIND))
    if not ports and not events:
        raise FormatError(f"{KIND}: no port of a device in it")
    events += [event for port in ports if (event := _event(port)) is not None]
    unread = [port.name for port in ports if not (port.state or "interface" in port.facts)]
    return Findings(
        kind=KIND,
        links=tuple(map(_link, ports)),
        events=tuple(events),
        problems=(f"it breaks off at {unread[0]}",) if unread else (),
    )


def _is_of_another_port(ports: list[_PortText], device: str) -> bool:
    """Whether a state belongs to a port whose own line was taken out."""
    return not ports or bool(ports[-1].state) or (bool(device) and ports[-1].device != device)


def _link(port: _PortText) -> Link:
    rate = number(port.facts.get("rate"))
    return Link(
        source=KIND,
        a=End(Node.NIC, port.device),
        b=End(Node.SWITCH, port.name),
        kind=_LAYERS.get(port.facts.get("linklayer", ""), "network"),
        bandwidth_bytes_s=None if rate is None else rate * 1e9 / 8,
        up=port.state == "active" if port.state else None,
        extra={key: port.facts[key] for key in ("state", "physicalstate") if key in port.facts},
    )


def _event(port: _PortText) -> Event | None:
    """What a port that is not active is: out of service, not configured, or perhaps unused."""
    if not port.state or port.state == "active":
        return None
    line = f"{port.name}: {port.state}, {port.cable or 'cable not stated'}"
    in_service = port.was_in_service
    meaning = "The port carries no data"
    if port.cable == "linkup" or port.state in ("init", "initializing", "armed"):
        meaning = "The cable is up, and no subnet manager has made the port active"
        action, todo, in_service = "look at the subnet manager", Action.MONITOR, True
    elif in_service and port.cable != "disabled":
        action, todo = "check the cable and the switch's port", Action.ISOLATE
    elif in_service:
        action, todo = "switch it on if a job needs it", Action.MONITOR
        meaning += ": it was in service, and is switched off"
    elif port.cable == "polling" and "baselid" not in port.facts:
        action, todo, in_service = "check its cable if a job needs it", Action.MONITOR, True
        meaning += "; whether it was in service is not stated"
    else:
        action, todo = "check its cable if a job needs it", Action.NONE
        meaning += ": it is switched off" if port.cable == "disabled" else ""
    fatal = todo is Action.ISOLATE
    return Event(
        source=KIND,
        vendor=HOST,
        code="port down" if fatal else "port not active",
        meaning=meaning,
        action=action,
        todo=str(todo),
        fatal=fatal or None,
        reference=_SOURCE,
        line=line,
        device=port.name,
        unsettled=in_service and not fatal,
    )


def _interface_down(port: str, interface: str, line: str) -> Event:
    return Event(
        source=KIND,
        vendor=HOST,
        code="interface down",
        meaning=f"The interface {interface} is down, and this does not say whether its port works",
        action="see the port's State in `ibstat`",
        todo=str(Action.NONE),
        # of a cluster where every port works
        reference="https://github.com/imbue-ai/cluster-health/issues/4",
        line=line,
        device=port,
    )


def _lost(device: str, why: str, line: str) -> Event:
    return Event(
        source=KIND,
        vendor=HOST,
        code="device lost",
        meaning=f"The tool lists the device and cannot open it ({why.strip()})",
        action="see dmesg for the device; restart the machine",
        todo=str(Action.ISOLATE),
        fatal=True,
        reference=_SOURCE,
        line=line,
        device=device,
    )
