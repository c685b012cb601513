"""``ethtool -S``: the counters of a network port, of which few say that a link is bad.

``ethtool`` alone and ``ethtool -i`` state settings and the driver, which are often pasted with it.

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
_PLAIN: Final = (
    r"(?:rx|tx)_(?:\w{1,40}_phy|prio\d_(?:pause|discards)\w{0,20}|crc_errors|out_of_buffer): +\d"
    r"{1,20}[ \t]*(?:\n|$)"
)
"""A line of counters that no other output has."""
SHAPES: Final = (
    Shape(
        r"NIC statistics:\s*$|NIC statistics:\s*\n",
        re.compile(r"\s+(?:\[\d{1,4}\]: )?[A-Za-z][\w .:()-]{0,80}: *-?\d"),
        last=re.compile(r"\s*.{1,100}: *-?\d{1,20}"),
    ),
    # ethtool -S eth2 | grep phy
    Shape(
        rf"(?:{_PLAIN})",
        re.compile(r"\s*[A-Za-z][\w .:()-]{0,80}: *-?\d{1,20}$"),
        last=re.compile(r"\s*.{1,100}: *-?\d{1,20}"),
        weak=True,
    ),
    Shape(
        r"driver: \S.{0,40}\n(?:version|firmware-version): ",
        re.compile(r"[a-z][a-z-]{2,30}:"),
        last=re.compile(r"[a-z-]{3,30}: .*"),
    ),
    Shape(
        r"Settings for \S{1,40}:\s*\n",
        re.compile(r"\s+\S|netlink error: "),
        last=re.compile(r"\s*Link detected: (?:yes|no)\b.*"),
    ),
)
_OTHERS: Final = re.compile(
    rf"^[ \t]*(?:{_PLAIN})"
    r"|^[ \t]*(?:driver: \S.{0,40}\n[ \t]*(?:firmware-)?version: |Settings for \S{1,40}:\s*$)",
    re.MULTILINE,
)
_PORT_SETTINGS: Final = re.compile(
    r"^[ \t]*Settings for (\S{1,40}):[ \t]*\n((?:[ \t]+\S.*\n?)*)", re.MULTILINE
)
_BAD: Final = {
    "rx_symbol_err_phy": "symbols that could not be decoded: the cable or its ends are bad",
    "rx_pcs_symbol_err_phy": "symbols that error correction could not mend",
    "rx_crc_errors_phy": "frames with a wrong checksum: the cable or its ends are bad",
    "rx_fcs_err_frames": "frames with a wrong checksum: the cable or its ends are bad",
    "frames_rx_bad_fcs": "frames with a wrong checksum: the cable or its ends are bad",
    "rx_crc_errors.nic": "frames with a wrong checksum: the cable or its ends are bad",
    "port.rx_crc_errors": "frames with a wrong checksum: the cable or its ends are bad",
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
    start = text[:4000]
    title = re.search(r"^[ \t]*NIC statistics:\s*$", start, re.MULTILINE)
    return title is not None or _OTHERS.search(start) is not None


def parse(text: str) -> Findings:
    """An event for each counter of a bad link that is not 0."""
    counts: dict[str, int] = {}
    for line in map(str.strip, text.splitlines()):
        if (found := _COUNTER.match(line)) is not None:
            name = found.group(1).strip()
            counts[name] = counts.get(name, 0) + int(found.group(2))
    down = [
        (port, why)
        for port, why in _PORT_SETTINGS.findall(text)
        if re.search(r"^[ \t]*Link detected: no\b", why, re.MULTILINE)
    ]
    if not counts and _OTHERS.search(text) is None:
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
        )
        + tuple(_no_link(port, why) for port, why in down),
    )


def _no_link(port: str, settings: str) -> Event:
    found = re.search(r"Link detected: no(?: \((.{1,80})\))?", settings)
    why = found.group(1) if found is not None and found.group(1) else "the reason is not stated"
    return Event(
        source=KIND,
        vendor=HOST,
        code="no link",
        meaning=f"The port has no link: {why}",
        action="check its cable and the switch's port if a job needs it",
        todo=str(Action.NONE),
        reference="https://man7.org/linux/man-pages/man8/ethtool.8.html",
        line=f"{port}: Link detected: no",
        device=port,
    )
