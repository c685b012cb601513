"""``tegrastats``: one line a second of a Jetson, whose GPU is a part of the processor.

Source: NVIDIA's Jetson and DRIVE OS guides, "Reported Statistics". "GR3D_FREQ 12%@[1300,1300]" is
the GPU with the clock of each of its clusters; older lines have one clock or none,
and the first releases for Thor clocks alone. The sensor of a
unit that is switched off states -256 degrees. It has no list of faults: those are in the log.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape, number
from portagpu.facts.readings.model import Findings, FormatError, GpuState, Reading, without_none
from portagpu_cuda.formats._nvidia import VENDOR

KIND: Final = "tegrastats"

_LINE: Final = r"(?:\d\d-\d\d-\d{4} [\d:]{8} )?RAM \d{1,7}/\d{1,7}MB \(lfb "
SHAPES: Final = (Shape(_LINE, re.compile(rf"\s*{_LINE}"), checks_its_end=True),)
_BUSY: Final = re.compile(r"\bGR3D(?:_FREQ)? (?=[\d@])(?:(\d{1,3})%)?(?:@\[?(\d{1,5}))?")
_WARM: Final = re.compile(r"\b(?:gpu|GPU|GPU-therm)@(-?\d{1,3}(?:\.\d{1,3})?)C\b")
_OFF_C: Final = -200.0


def matches(text: str) -> bool:
    """Whether one of the first lines is one of the tool's."""
    return re.search(rf"^[ \t]*{_LINE}", text[:8000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """The GPU as the last line that names it says it."""
    for line in reversed(text.splitlines()):
        if (busy := _BUSY.search(line)) is None:
            continue
        warm = _WARM.search(line)
        celsius = None if warm is None else number(warm.group(1))
        state = GpuState(
            temperatures_c=without_none(
                {"gpu": celsius if celsius is not None and celsius > _OFF_C else None}
            ),
            clock_mhz=number(busy.group(2)),
            utilization_percent=number(busy.group(1)),
        )
        return Findings(
            kind=KIND, readings=(Reading(source=KIND, vendor=VENDOR, index=0, state=state),)
        )
    raise FormatError(f"{KIND}: no line in it names the GPU")
