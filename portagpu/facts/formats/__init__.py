"""Readers of tools' outputs, one module for each format; they import no vendor's package.

Each module has ``KIND`` (the format's name), ``matches(text)`` (whether a text is of it, from its
beginning) and ``parse(text)``, which returns :class:`portagpu.facts.readings.Findings` or raises
:class:`portagpu.facts.readings.FormatError`. From text that
breaks off, or has unknown sections, they return what can be read and a sentence in ``problems``.
``breaks_off`` says that devices may be missing. ``SHAPES`` describes where such an output begins in
a text of several, and which lines belong to it. Readers of XML have ``ROOT`` instead; readers of
JSON need neither. ``MASKED`` is True for a tool from which the variables of visible devices hide
devices: its list is never known to be complete.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from portagpu.facts.readings.model import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

FAILED: Final = frozenset(
    {"unknown error", "err!", "error", "gpu is lost", "gpu requires reset", "gpu reset required"}
)
"""What tools write, with or without brackets, where the device should have answered and did not."""

_ABSENT: Final = FAILED | frozenset(
    {"", "n/a", "none", "null", "unknown", "not supported", "not available", "not found",
     "function not found", "requested functionality has been deprecated",
     "insufficient permissions", "-"}
)  # fmt: skip


MAX_DEVICES: Final = 8192
"""Devices that one text may list: 1024 GPUs in eight partitions each."""


def within_device_limit(found: Iterable[T], kind: str) -> tuple[T, ...]:
    """``found`` as a tuple; raises FormatError for more than ``MAX_DEVICES``."""
    first = tuple(islice(found, MAX_DEVICES + 1))
    if len(first) > MAX_DEVICES:
        raise FormatError(f"{kind}: it lists more than {MAX_DEVICES} devices, as no machine has")
    return first


class Shape(NamedTuple):
    """How the lines of an output look; the patterns have no groups that capture.

    ``begins`` is matched with a stripped line, a line break, and the line below. ``line`` is
    matched with every other line of the output, and ``ends`` is searched in the last one. A
    ``weak`` shape does not begin inside another output. One that begins ``anywhere`` also begins at
    an indented line. A last line without a line end counts as cut, unless the reader
    ``checks_its_end`` by itself, or ``last`` matches the whole line. If ``device`` matches the same
    text again, a new output begins.
    """

    begins: str
    line: re.Pattern[str]
    ends: re.Pattern[str] | None = None
    weak: bool = False
    anywhere: bool = False
    checks_its_end: bool = False
    last: re.Pattern[str] | None = None
    device: re.Pattern[str] | None = None
    tells_its_end: bool = False
    """The name of ``checks_its_end`` in contract 1.x."""


def is_error(text: str | None) -> bool:
    """Whether ``text`` is an error in the place of a value ("[GPU is lost]", "ERR!")."""
    return text is not None and text.strip().strip("[]").lower() in FAILED


def stated(text: str | None) -> str | None:
    """``text`` without blanks around it; None for "N/A" and tools' other words for no value."""
    if text is None:
        return None
    value = text.strip()
    return None if value.strip("[]").lower() in _ABSENT else value


def number(text: str | None) -> float | None:
    """The number that ``text`` begins with, whatever unit follows ("81559 MiB"); None without."""
    match = re.match(r"([+-]?\d+(?:\.\d+)?)(?![\d.:x]|[eE][+-]?\d)", stated(text) or "", re.ASCII)
    return float(match.group(1)) if match is not None and len(match.group(1)) < 25 else None


def integer(text: str | None) -> int | None:
    """The whole number, decimal or 0x, that ``text`` begins with; None for anything else."""
    value = stated(text) or ""
    match = re.match(
        r"(0[xX][0-9a-fA-F]{1,16})\b|([+-]?\d{1,24})(?![\d.:x]|[eE][+-]?\d)", value, re.ASCII
    )
    if match is None:
        return None
    return int(match.group(1), 16) if match.group(1) else int(match.group(2))


def pci_address(text: str | None) -> str | None:
    """ "00000000:07:00.0" or "0000:07:00" as "0000:07:00.0"; None for anything else."""
    match = re.fullmatch(
        r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?",
        (stated(text) or "").lower(),
    )
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}"
