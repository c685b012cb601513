"""The log of DCGM's host engine (``/var/log/nv-hostengine.log``) and of what embeds it.

Source: NVIDIA/DCGM, common/DcgmLogging.h: time, level, [process:thread], module, message, [place]
[function]. dcgm-exporter has the level and the message as ``dcgm_level=`` and ``msg=``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.formats import Shape
from portagpu.facts.formats.events import no_answer_events
from portagpu.facts.readings.model import Event, Findings, FormatError
from portagpu_cuda.formats._nvidia import VENDOR

KIND: Final = "nv-hostengine's log"

_LINE: Final = re.compile(
    r"\s*(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) )?"
    r"(?P<level>NONE|FATAL|ERROR|WARN|INFO|DEBUG|VERB) +\[\d{1,9}:\d{1,9}\] (?P<message>.{1,2000})"
)
_EXPORTER: Final = re.compile(
    r"\s*time=\S{10,40} level=(?P<level>[A-Z]{4,5}) msg=(?P<message>.{1,2000}dcgm_level=.*)"
)
_PLACE: Final = re.compile(r" \[[^\[\]]{1,300}:\d{1,6}\] \[[^\[\]]{1,300}\]\s*$")
_BEGINS: Final = (
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )?"
    r"(?:NONE|FATAL|ERROR|WARN|INFO|DEBUG|VERB) +\[\d{1,9}:\d"
    r"|time=\S{10,40} level=[A-Z]{4,5} msg=.{1,2000}dcgm_level="
)
SHAPES: Final = (
    Shape(
        _BEGINS,
        re.compile(rf"\s*(?:{_BEGINS}|time=\S{{10,40}} level=)"),
        checks_its_end=True,
    ),
)
_NO_FAULT: Final = re.compile(
    r"Not attached to NvSwitches|Incompatible hardware vendor for sysmon|NVSDM"
    r"|Failed to load module"
    r"|nvswitch|libdcgm\w* not found"
)
"""Modules for hardware that a node does not have (github.com/NVIDIA/DCGM/issues/174)."""
_LOST: Final = re.compile(r"(?i)gpu_is_lost|gpu is lost|fallen off|reset_required|unrecoverable")
_GONE: Final = re.compile(r"(?i)returned GPU is lost|NVML_ERROR_GPU_IS_LOST")
"""NVML's answer of one GPU, as nvmlErrorString writes it."""
_MAX_KINDS: Final = 100
_SOURCE: Final = "https://github.com/NVIDIA/DCGM"


def matches(text: str) -> bool:
    """Whether a line of the beginning is the host engine's."""
    lines = text[:20_000].splitlines()
    return any(_LINE.match(line) or _EXPORTER.match(line) for line in lines)


def parse(text: str) -> Findings:
    """An event for each kind of error that no table has, but of modules without hardware."""
    kinds: Counter[str] = Counter()
    first: dict[str, tuple[str, str | None]] = {}
    known = False
    for line in text.splitlines():
        found = _LINE.match(line) or _EXPORTER.match(line)
        if found is None:
            continue
        known = True
        if found["level"] not in ("ERROR", "FATAL") or no_answer_events(line):
            continue
        message = _PLACE.sub("", found["message"]).strip()
        words = re.sub(r"0x[0-9a-f]+|\d+", "N", message)
        if _NO_FAULT.search(message) is None and (words in kinds or len(kinds) < _MAX_KINDS):
            kinds[words] += 1
            first.setdefault(words, (message, found.groupdict().get("time")))
    if not known:
        raise FormatError(f"{KIND}: no line of it")
    events = tuple(_event(*first[words], count) for words, count in kinds.items())
    return Findings(kind=KIND, events=events)


def _event(message: str, time: str | None, count: int) -> Event:
    times = f", {count} times" if count > 1 else ""
    gone = _GONE.search(message)
    index = re.search(r"\b(?:nvmlIndex|gpuId|GPU) (\d{1,3})\b", message) if gone else None
    return Event(
        source=KIND,
        vendor=VENDOR,
        code="host engine error",
        time=time,
        meaning=excerpt(message, 160) + times,
        action="see what dcgmi health -c and the kernel's log say of the GPUs",
        todo=str(Action.ISOLATE if gone else Action.MONITOR),
        fatal=True if gone else None,
        reference=_SOURCE,
        line=excerpt(message),
        device=f"GPU {index.group(1)}" if index else None,
        unsettled=gone is None and _LOST.search(message) is not None,
    )
