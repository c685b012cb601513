"""The log of NVIDIA's device plugin for Kubernetes, which calls GPUs unhealthy after Xids.

Source: NVIDIA/k8s-device-plugin, internal/rm/health.go.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Findings, FormatError
from portagpu_cuda.formats._xid import xid_event

KIND: Final = "device plugin log"

_HEAD: Final = (
    r"(?:\d{4}-\d\d-\d\dT[\d:.]{8,20}Z )?"
    r"(?:[IWEF]\d{4} [\d:.]{8,15} +\d{1,8} [\w.-]{1,40}\.go:\d{1,5}\] |\d{4}/\d\d/\d\d [\d:]{8} )"
)
_XID: Final = re.compile(
    r"XidCriticalError: Xid=(?P<number>\d{1,4}) on Device=(?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]{4,60})"
)
SHAPES: Final = (
    Shape(
        rf"{_HEAD}(?:XidCriticalError: |'[\w./-]{{1,60}}' device marked unhealthy"
        r"|(?:Skipping|Processing) (?:non-nvmlEventTypeXidCriticalError )?event)",
        re.compile(_HEAD),
        last=re.compile(rf"{_HEAD}.*"),
    ),
)


def matches(text: str) -> bool:
    """Whether a line of the beginning is of the plugin's watch over health."""
    return re.search(rf"^[ \t]*(?:{SHAPES[0].begins})", text[:20_000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """An event for each Xid after which the plugin took a device out of use."""
    found = [
        xid_event(int(said["number"]), KIND, device=said["uuid"], line=said.string)
        for said in map(_XID.search, map(str.strip, text.splitlines()))
        if said is not None
    ]
    if not found and not matches(text):
        raise FormatError(f"{KIND}: no line of the plugin's watch over health in it")
    return Findings(kind=KIND, events=tuple(event for event in found if event is not None))
