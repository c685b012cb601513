"""``perfquery`` and ``mlxlink``: the counters and the state of one network port.

Source: linux-rdma/rdma-core, ``infiniband-diags/perfquery.c``; Mellanox/mstflint, ``mlxlink``.
Counters are since somebody cleared them. Packets that waited or were discarded are the work of any
network, and not judged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.formats.events import HOST
from portagpu.facts.readings.model import Event, Findings, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND: Final = "perfquery"

_PORT: Final = re.compile(r"# Port (?:extended )?counters: (Lid \d{1,5} port \d{1,3})\b")
_COUNTER: Final = re.compile(r"\s*([A-Z]\w{2,40}):\.{2,60}(\d{1,20})\s*$")
_OPERATIONAL: Final = r"Operational Info"
_FIELD: Final = re.compile(r"\s*([A-Z][A-Za-z ]{1,40}?) +: (\S.{0,80}?)\s*$")
SHAPES: Final = (
    Shape(
        r"# Port (?:extended )?counters: Lid \d|"
        r"(?:SymbolErrorCounter|LinkDownedCounter|PortRcvErrors):\.{2}",
        re.compile(r"\s*(?:# Port |[A-Z]\w{2,40}:\.{2})"),
        last=_COUNTER,
    ),
    Shape(
        rf"{_OPERATIONAL} *\n-{{4}}",
        re.compile(r"\s*(?:-{4}|[A-Z][\w ()/-]{1,60}(?: +: |$))"),
        checks_its_end=True,
    ),
)
_BAD: Final = {
    "SymbolErrorCounter": "symbols that could not be decoded",
    "LinkErrorRecoveryCounter": "times that the link was trained again",
    "LinkDownedCounter": "times that the link went down",
    "PortRcvErrors": "packets with errors",
    "LocalLinkIntegrityErrors": "times that local errors passed their limit",
    "ExcessiveBufferOverrunErrors": "times that a buffer ran over",
}
_SOURCE: Final = "https://man7.org/linux/man-pages/man8/perfquery.8.html"


def matches(text: str) -> bool:
    """Whether a counter, or the title of mlxlink, stands in the beginning."""
    begins = "|".join(shape.begins for shape in SHAPES)
    return re.search(rf"^[ \t]*(?:{begins})", text[:4000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """An event for each counter of a bad link that is not 0, and for a port that is not active."""
    if not matches(text):
        raise FormatError(f"{KIND}: no counter of a port in it")
    return Findings(kind=KIND, events=(*_counted(text), *_state(text)))


def _counted(text: str) -> Iterator[Event]:
    port = None
    for line in text.splitlines():
        if (named := _PORT.search(line)) is not None:
            port = named.group(1)
        elif (counter := _COUNTER.match(line)) is not None and int(counter.group(2)):
            name, count = counter.groups()
            if name in _BAD:
                yield Event(
                    source=KIND,
                    vendor=HOST,
                    code=f"network {name}",
                    meaning=f"The port has counted {count} {_BAD[name]}",
                    action="clear the counters, and see whether it grows; clean or replace the "
                    "cable if it does",
                    todo=str(Action.MONITOR),
                    reference=_SOURCE,
                    line=line.strip(),
                    device=port,
                )


def _state(text: str) -> Iterator[Event]:
    if re.search(rf"^[ \t]*{_OPERATIONAL}\s*$", text, re.MULTILINE) is None:
        return
    facts: dict[str, str] = {}
    for line in text.splitlines():
        if (field := _FIELD.match(line)) is not None:
            facts.setdefault(field.group(1), field.group(2))
    state = facts.get("State", "Active")
    if state.lower() == "active":
        return
    advice = facts.get("Recommendation", "")
    said = f": {advice}" if advice and "No issue" not in advice else ""
    yield Event(
        source=KIND,
        vendor=HOST,
        code="port not active",
        meaning=f"The port is in the state {state}{said}",
        action="check its cable and the switch's port if a job needs it",
        todo=str(Action.NONE),
        reference="https://docs.nvidia.com/networking/display/mftv4300/mlxlink-utility",
        line=f"State: {state}",
    )
