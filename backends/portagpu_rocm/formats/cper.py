"""``amd-smi ras --cper``: the records of errors that the driver keeps for each GPU.

Source: github.com/ROCm/amdsmi, amdsmi_cli/amdsmi_helpers.py: a time, the GPU's number and the
severity, and where a folder was given the record's file and its field identifiers (AFID).
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_rocm.formats._amd import VENDOR

KIND: Final = "amd-smi ras"

_HEAD: Final = r"timestamp +gpu_id +severity\b"
_ROW: Final = re.compile(
    r"\s*(?P<time>\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) +(?P<gpu>\d{1,4}|-) +"
    r"(?P<severity>[A-Za-z_-]{4,30})"
    r"(?: +(?P<file>\S{1,200})(?: +(?P<afids>[\d ,-]{1,200}))?)?\s*$"
)
_NOTE: Final = r"Dumping CPER file header entries|WARNING: No CPER files will be dumped"
SHAPES: Final = (
    Shape(
        rf"(?:{_NOTE}).*$|{_HEAD}",
        re.compile(rf"\s*(?:{_NOTE}|{_HEAD}|\d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d )"),
        last=_ROW,
    ),
)
_SOURCE: Final = "https://github.com/ROCm/amdsmi/blob/amd-staging/docs/how-to/amdsmi-cli-tool.md"


def matches(text: str) -> bool:
    """Whether the names of the columns stand in the beginning."""
    return re.search(rf"^\s*{_HEAD}", text[:8000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """An event for each record; none where the tool lists none."""
    if not matches(text):
        raise FormatError(f"{KIND}: the names of the columns are not in it")
    rows = [_ROW.match(line) for line in text.splitlines()]
    return Findings(kind=KIND, events=tuple(_event(row) for row in rows if row is not None))


def _event(row: re.Match[str]) -> Event:
    severity = row["severity"].lower().replace("_", "-")
    fatal = severity == "fatal"
    corrected = "uncorrected" not in severity and "corrected" in severity
    todo = Action.NONE if corrected else Action.RESET
    of = f", field identifiers {row['afids'].strip()}" if row["afids"] else ""
    return Event(
        source=KIND,
        vendor=VENDOR,
        code=f"CPER {severity}",
        time=row["time"],
        meaning=f"The driver recorded an error of the severity {severity}{of}",
        action="none; watch the rate"
        if corrected
        else "reset the GPU, and replace it if it returns; amd-smi ras --afid decodes the record",
        todo=str(todo),
        fatal=fatal or None,
        reference=_SOURCE,
        line=row.group().strip(),
        device=None if row["gpu"] == "-" else f"GPU {row['gpu']}",
    )
