"""Lines of ``amd-smi metric --ecc-blocks`` that grep took out of it, which name no GPU.

Source: ROCm/amdsmi, ``amdsmi_cli/amdsmi_commands.py``: a block of the GPU, and below it the counts
of its errors since the driver was loaded.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_rocm.formats._amd import VENDOR

KIND: Final = "amd-smi metric (lines)"

_COUNT: Final = re.compile(
    r"\s*(?:TOTAL_)?(?P<kind>UNCORRECTABLE|CORRECTABLE|DEFERRED)_COUNT: (?P<count>\d{1,12})\s*$"
)
_BLOCK: Final = re.compile(r"\s*([A-Z][A-Z0-9_]{1,20}):\s*$")
_LINE: Final = r"(?:TOTAL_)?(?:(?:UN)?CORRECTABLE|DEFERRED)_COUNT: \d"
SHAPES: Final = (
    Shape(
        rf"(?:[A-Z][A-Z0-9_]{{1,20}}:\s*\n\s*)?{_LINE}",
        re.compile(rf"\s*(?:{_LINE}|[A-Z][A-Z0-9_]{{1,20}}:\s*$)"),
        weak=True,
        last=_COUNT,
    ),
)
_SOURCE: Final = "https://github.com/ROCm/amdsmi/blob/amd-staging/docs/how-to/amdsmi-cli-tool.md"


def matches(text: str) -> bool:
    """Whether a count, or a block with one below it, stands in the first line."""
    return re.match(rf"\s*{SHAPES[0].begins}", text) is not None


def parse(text: str) -> Findings:
    """An event for each count that is not 0."""
    events: list[Event] = []
    block = ""
    found = False
    for line in text.splitlines():
        if (title := _BLOCK.match(line)) is not None:
            block = title.group(1)
        elif (said := _COUNT.match(line)) is not None:
            found = True
            if int(said["count"]):
                events.append(_event(said["kind"], int(said["count"]), block, line.strip()))
    if not found:
        raise FormatError(f"{KIND}: no count of errors in it")
    return Findings(kind=KIND, events=tuple(events))


def _event(kind: str, count: int, block: str, line: str) -> Event:
    fatal = kind == "UNCORRECTABLE"
    return Event(
        source=KIND,
        vendor=VENDOR,
        code=f"{kind.lower()} errors" + (f" ({block})" if block else ""),
        meaning=f"{count} since the driver was loaded, of a GPU that the lines do not name",
        action="see amd-smi metric of each GPU; reset it, and replace it if they return"
        if fatal
        else "watch the rate",
        todo=str(Action.RESET if fatal else Action.MONITOR),
        fatal=fatal or None,
        reference=_SOURCE,
        line=line,
    )
