"""Reads what ``demo-smi`` prints: one line for each board, and no more than it says.

demo-smi 1.0
board 0 at 0000:41:00.0: Demo One, DEMO-01, 61 C, slowed by fan_stopped, 3 pages retired
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.plugin import Findings, FormatError, GpuState, Memory, Reading, Shape

KIND: Final = "demo-smi"
SHAPES: Final = (Shape(r"demo-smi \d", re.compile(r"board \d")),)
"""Where its output begins in a text that has other outputs too, and which lines belong to it."""
_BOARD: Final = re.compile(
    r"board (?P<index>\d{1,4}) at (?P<pci>[0-9a-f:.]{12}): (?P<name>[\w ]{1,40}), "
    r"(?P<uuid>DEMO-\d{1,9}), (?P<celsius>\d{1,3}) C, "
    r"(?:not slowed|slowed by (?P<reason>\w{1,40})), (?P<pages>\d{1,6}) pages retired"
)


def matches(text: str) -> bool:
    """Whether ``text`` begins with the tool's name and version."""
    return text.startswith("demo-smi ")


def parse(text: str) -> Findings:
    """The boards of ``text``; raises FormatError where it has none."""
    lines = [line for line in text.splitlines()[1:] if line.strip()]
    found = [(line, _BOARD.fullmatch(line.strip())) for line in lines]
    readings = [_reading(match) for _, match in found if match is not None]
    if not readings:
        raise FormatError(f"{KIND}: it lists no board")
    problems = [
        f"{KIND}: a line is of no board: {line[:40]!r}" for line, match in found if not match
    ]
    return Findings(kind=KIND, readings=tuple(readings), problems=tuple(problems))


def _reading(match: re.Match[str]) -> Reading:
    return Reading(
        source=KIND,
        vendor="demo",
        index=int(match["index"]),
        pci=match["pci"],
        name=match["name"],
        uuid=match["uuid"],
        memory=Memory(retired_pages={"all": int(match["pages"])}),
        state=GpuState(
            temperatures_c={"gpu": float(match["celsius"])},
            throttling=(match["reason"],) if match["reason"] else (),
        ),
    )
