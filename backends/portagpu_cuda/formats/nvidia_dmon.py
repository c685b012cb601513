"""``nvidia-smi dmon`` and ``dcgmi dmon``: a row of values for each GPU, sample after sample.

Two lines of names and units stand above the rows, and return. Source: nvidia-smi(1), "Device
Monitoring"; NVIDIA/DCGM, ``dcgm_fields.cpp`` for the short names of its fields. ``sbecc`` and
``dbecc`` are the errors since the driver was loaded.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape, integer, number, stated, within_device_limit
from portagpu.facts.readings.model import (
    Event,
    Findings,
    FormatError,
    GpuState,
    Memory,
    Reading,
    without_none,
)
from portagpu_cuda.formats._nvidia import VENDOR
from portagpu_cuda.formats._xid import xid_event

KIND: Final = "nvidia-smi dmon"

_HEAD: Final = r"# ?(?:Time +|Date +Time +)?gpu +[a-z]|#Entity +[A-Z0-9]{3,10}\b"
_UNITS: Final = r"# ?(?:HH:MM:SS +|YYYYMMDD +HH:MM:SS +)?Idx\b|ID\b"
_ROW: Final = r"(?:[\d:]{8} +|\d{8} +[\d:]{8} +)?\d{1,4} +[-\dN]|GPU \d{1,4} +[-\dN]"
SHAPES: Final = (
    Shape(
        rf"(?:{_HEAD})[^\n]*\n(?:{_UNITS})",
        re.compile(rf"\s*(?:{_HEAD}|{_UNITS}|{_ROW})"),
        last=re.compile(rf"\s*(?:{_ROW}).*\d[ \t]*"),
        weak=True,
    ),
)
_TIMES: Final = ("time", "date")
_CORRECTED: Final = ("sbecc", "esvtl")
_UNCORRECTED: Final = ("dbecc", "edvtl")
_XID: Final = "xider"


def matches(text: str) -> bool:
    """Whether the lines of names and units stand in the beginning."""
    return re.search(rf"^\s*{SHAPES[0].begins}", text[:4000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """A reading for each GPU from its last row, and an event for each Xid."""
    names: list[str] = []
    rows: dict[int, dict[str, str]] = {}
    events: dict[tuple[int, int], Event] = {}
    cut = False
    for line in map(str.strip, text.splitlines()):
        if re.match(_HEAD, line) is not None:
            names = line.lstrip("# ").lower().split()
        elif names and re.match(_ROW, line) is not None:
            cells = line.removeprefix("GPU ").split()
            # every cell has a word: "-" where there is no value
            cut = len(cells) < len(names)
            row = dict(zip(names, cells, strict=False))
            index = integer(row.get(next(name for name in names if name not in _TIMES)))
            if index is None:
                continue
            rows[index] = row
            event = xid_event(integer(row.get(_XID)) or 0, KIND, device=f"GPU {index}", line=line)
            if event is not None:
                events[index, integer(row.get(_XID)) or 0] = event
    if not rows:
        raise FormatError(f"{KIND}: no row of a GPU in it")
    return Findings(
        kind=KIND,
        readings=within_device_limit((_reading(*each) for each in sorted(rows.items())), KIND),
        events=tuple(events.values()),
        breaks_off=cut,
    )


def _reading(index: int, row: dict[str, str]) -> Reading:
    def first(*names: str) -> str | None:
        return next((value for name in names if (value := stated(row.get(name)))), None)

    celsius = {
        "gpu": number(first("gtemp", "temp", "tmptr")),
        "memory": number(first("mtemp", "mmtmp")),
    }
    return Reading(
        source=KIND,
        vendor=VENDOR,
        index=index,
        memory=Memory(
            corrected=integer(first(*_CORRECTED)), uncorrected=integer(first(*_UNCORRECTED))
        ),
        state=GpuState(
            temperatures_c=without_none(celsius),
            power_w=number(first("pwr", "power")),
            utilization_percent=number(first("sm", "gputl")),
        ),
    )
