"""The log of NVIDIA's device plugin for Kubernetes, which calls GPUs unhealthy after Xids.

Source: NVIDIA/k8s-device-plugin, internal/rm/health.go.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR
from portagpu_cuda.formats._xid import xid_event

KIND: Final = "device plugin log"

_SOURCE: Final = "https://github.com/NVIDIA/k8s-device-plugin/blob/main/internal/rm/health.go"
_HEAD: Final = (
    r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z )?"
    r"(?:[IWEF]\d{4} [\d:.]{8,15} +\d{1,8} [\w.-]{1,40}\.go:\d{1,5}\] |\d{4}/\d\d/\d\d [\d:]{8} )"
)
_XID: Final = re.compile(
    r"XidCriticalError: Xid=(?P<number>\d{1,4}) on Device=(?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]{4,60})"
)
_UNHEALTHY: Final = re.compile(
    r"' device marked unhealthy: (?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]{4,60})"
    r"|GPU with UUID (?P<old>GPU-[0-9a-f-]{4,60}) .{0,200}Marking it unhealthy"
)
SHAPES: Final = (
    Shape(
        rf"{_HEAD}(?:XidCriticalError: |'[\w./-]{{1,60}}' device marked unhealthy"
        r"|Warning: GPU with UUID "
        r"|(?:Skipping|Processing) (?:non-nvmlEventTypeXidCriticalError )?event)",
        re.compile(_HEAD),
        last=re.compile(rf"{_HEAD}.*"),
    ),
)


def matches(text: str) -> bool:
    """Whether a line of the beginning is of the plugin's watch over health."""
    return re.search(rf"^[ \t]*(?:{SHAPES[0].begins})", text[:20_000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """An event for each Xid after which the plugin took a device out of use, and for the device."""
    lines = list(map(str.strip, text.splitlines()))
    found = [
        xid_event(int(said["number"]), KIND, device=said["uuid"], line=said.string)
        for said in map(_XID.search, lines)
        if said is not None
    ]
    explained = {event.device for event in found if event is not None and event.todo != "none"}
    found += [
        _taken_out(uuid, said.string)
        for said in map(_UNHEALTHY.search, lines)
        if said is not None and (uuid := said["uuid"] or said["old"]) not in explained
    ]
    if not found and not matches(text):
        raise FormatError(f"{KIND}: no line of the plugin's watch over health in it")
    return Findings(kind=KIND, events=tuple(event for event in found if event is not None))


def _taken_out(uuid: str, line: str) -> Event:
    return Event(
        source=KIND,
        vendor=VENDOR,
        code="device marked unhealthy",
        meaning="Kubernetes starts no further pod on this GPU",
        action="see why in the lines before and in dmesg; restart the plugin where it is mended",
        todo="monitor",
        reference=_SOURCE,
        line=line,
        device=uuid,
        unsettled=True,
    )
