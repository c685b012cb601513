"""What NHC prints of its checks (mej/nhc, and Azure's AzNHC).

The lines of checks that failed are in ``answers.toml``, because schedulers print them alone.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Findings, FormatError

KIND: Final = "NHC"

_LINE: Final = (
    r"(?:SUCCESS|ERROR|WARNING|DEBUG): {1,4}nhc: {1,4}\S|Health checks completed with exit code"
    r"|Node Health Check starting|Running check: |\[\d{10}\] - DEBUG: "
)
SHAPES: Final = (Shape(rf"(?:{_LINE})", re.compile(rf"\s*(?:{_LINE})"), checks_its_end=True),)


def matches(text: str) -> bool:
    """Whether a line of the beginning is NHC's."""
    return re.search(rf"^[ \t]*(?:{_LINE})", text[:20_000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """That the checks ran; what failed of them is read as a tool's answer."""
    if not matches(text):
        raise FormatError(f"{KIND}: no check in it")
    return Findings(kind=KIND)
