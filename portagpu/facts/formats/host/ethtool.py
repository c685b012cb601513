"""``ethtool -S``: the counters of a network port, of which few say that a link is bad.

Names are the drivers'; those of mlx5 are documented (docs.kernel.org, mlx5 counters), those of
bnxt_en are of drivers/net/ethernet/broadcom/bnxt. Counters are since the driver was loaded. Packets
that were discarded, pauses and links that went down are the work of any network, and not judged.
"""

from __future__ import annotations

import re
from typing import Final

from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.formats.events import HOST
from portagpu.facts.readings.model import Event, Findings, FormatError

KIND: Final = "ethtool -S"

_COUNTER: Final = re.compile(r"(?:\[\d{1,4}\]: )?([A-Za-z][\w .:()-]{1,80}?): *(-?\d{1,20})$")
SHAPES: Final = (
    Shape(
        r"NIC statistics:\s*$|NIC statistics:\s*\n",
        re.compile(r"\s+(?:\[\d{1,4}\]: )?[A-Za-z][\w .:()-]{0,80}: *-?\d"),
        last=re.compile(r"\s*.{1,100}: *-?\d{1,20}"),
    ),
)
_BAD: Final = {
    "rx_symbol_err_phy": "symbols that could not be decoded: the cable or its ends are bad",
    "rx_pcs_symbol_err_phy": "symbols that error correction could not mend",
    "rx_crc_errors_phy": "frames with a wrong checksum: the cable or its ends are bad",
    "rx_fcs_err_frames": "frames with a wrong checksum: the cable or its ends are bad",
    "rx_crc_errors": "frames with a wrong checksum: the cable or its ends are bad",
    "module_bad_shorted": "a cable that is shorted",
    "module_high_temp": "a cable's module that was too hot",
    "module_bus_stuck": "a cable's module that did not answer",
}
_MEDIA: Final = (
    "https://docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html"
)


def matches(text: str) -> bool:
    """Whether the title stands in the beginning."""
    return re.search(r"^[ \t]*NIC statistics:\s*$", text[:4000], re.MULTILINE) is not None


def parse(text: str) -> Findings:
    """An event for each counter of a bad link that is not 0."""
    counts: dict[str, int] = {}
    for line in map(str.strip, text.splitlines()):
        if (found := _COUNTER.match(line)) is not None:
            name = found.group(1).strip()
            counts[name] = counts.get(name, 0) + int(found.group(2))
    if not counts:
        raise FormatError(f"{KIND}: no counter in it")
    return Findings(
        kind=KIND,
        events=tuple(
            Event(
                source=KIND,
                vendor=HOST,
                code=f"network {name}",
                meaning=f"The port has counted {counts[name]} {meaning}",
                action="see whether it grows; clean or replace the cable if it does",
                todo=str(Action.MONITOR),
                reference=_MEDIA,
                line=f"{name}: {counts[name]}",
            )
            for name, meaning in _BAD.items()
            if counts.get(name, 0) > 0
        ),
    )
