"""``nvidia-smi mig -lgip`` and ``-lgi``: the profiles of instances that GPUs can have, or have."""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.formats import Shape, within_device_limit
from portagpu.facts.readings.model import Findings, FormatError, Reading
from portagpu_cuda.formats._nvidia import VENDOR

KIND: Final = "nvidia-smi mig"

_TITLE: Final = (
    r"\| +(?:GPU instance profiles|GPU instances|Compute instance profiles|Compute instances): +\|"
)
SHAPES: Final = (
    Shape(
        _TITLE,
        re.compile(r"\s*(?:\|(?! (?:NVIDIA|AMD)-SMI)|\+[-=+]+\+)"),
        checks_its_end=True,
    ),
)
_ROW: Final = re.compile(
    r"\| +(\d{1,4})  +(?:MIG )?(\dg\.\d{1,4}gb(?:\+[\w.]{1,12})*|\dc\.\S{1,24}) "
)


def matches(text: str) -> bool:
    """Whether the table's title stands in the beginning."""
    return re.search(_TITLE, text[:4000]) is not None


def parse(text: str) -> Findings:
    """A reading for each GPU that a row names; its profiles are in ``extra``."""
    profiles: dict[int, list[str]] = {}
    for line in map(str.strip, text.splitlines()):
        if (row := _ROW.match(line)) is not None:
            profiles.setdefault(int(row.group(1)), []).append(row.group(2))
    if not profiles:
        raise FormatError(f"{KIND}: no row of a profile in it")
    return Findings(
        kind=KIND,
        readings=within_device_limit(
            (
                Reading(
                    source=KIND,
                    vendor=VENDOR,
                    index=index,
                    extra={"mig profiles": ", ".join(dict.fromkeys(names[:64]))},
                )
                for index, names in profiles.items()
            ),
            KIND,
        ),
    )
