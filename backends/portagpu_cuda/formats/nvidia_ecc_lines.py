"""Lines of ``nvidia-smi -q -d ECC`` that grep took out of it: "DRAM Uncorrectable : 2".

They say neither whose errors these are nor whether they are new: the log has each line two times a
GPU, below "Volatile" and below "Aggregate".
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR

KIND: Final = "nvidia-smi -q (lines of errors)"

_LABEL: Final = (
    r"(?:SRAM|DRAM) (?:Unc|C)orrectable(?: Parity| SEC-DED)?|Uncorrectable Error"
    r"|(?:Double|Single) Bit ECC"
)
_COUNT: Final = re.compile(rf"\s*(?P<what>{_LABEL}) +: (?P<count>\d{{1,12}}|N/A)\s*$")
SHAPES: Final = (
    Shape(
        rf"(?:{_LABEL}) {{1,40}}: [\dN]",
        re.compile(rf"\s*(?:{_LABEL}) {{1,40}}: "),
        weak=True,
        last=_COUNT,
    ),
)
_GUIDE: Final = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"


def matches(text: str) -> bool:
    """Whether such a line stands in the beginning, and nothing else of the log."""
    return _COUNT.match(text.partition("\n")[0]) is not None


def parse(text: str) -> Findings:
    """An event for each count of errors that were not corrected and is not 0."""
    found = [said for said in map(_COUNT.match, text.splitlines()) if said is not None]
    if not found:
        raise FormatError(f"{KIND}: no count of errors in it")
    counts = [
        (said["what"], said["count"], said.string.strip())
        for said in found
        if said["count"].strip("0") not in ("", "N/A") and not _is_corrected(said["what"])
    ]
    return Findings(
        kind=KIND,
        events=tuple(
            Event(
                source=KIND,
                vendor=VENDOR,
                code=f"{what}: {count}",
                meaning="Errors that were not corrected, new ones or those of the GPU's life",
                action="give the whole of nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
                todo="monitor",
                reference=_GUIDE,
                line=line,
                unsettled=True,
            )
            for what, count, line in counts
        ),
    )


def _is_corrected(label: str) -> bool:
    return "Single" in label or re.search(r"\b[Cc]orrectable", label) is not None
