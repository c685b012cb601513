"""What DCGM says of a GPU's health: results of its diagnosis and incidents of its watches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.base.text import excerpt
from portagpu.facts.actions import Action
from portagpu.facts.readings.model import Event
from portagpu_cuda.formats._nvidia import VENDOR

DIAGNOSIS: Final = "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html"
HEALTH: Final = (
    "https://docs.nvidia.com/datacenter/dcgm/latest/reference/command-line-reference/dcgmi/"
    "dcgmi-health.html"
)
_MAX_LEFT: Final = 120
_MAX_RIGHT: Final = 400
_GPU: Final = re.compile(r"\bGPUs?(?: ID)?:? ?(\d{1,3}(?:, ?\d{1,3}){0,63})\b")
_SOFTWARE: Final = frozenset(
    {"persistence mode", "denylist", "permissions and os blocks", "environment variables",
     "graphics processes", "nvml library", "cuda main library", "cuda toolkit library",
     "software", "driver", "fabric manager", "bad cuda environment variables"}
)  # fmt: skip
"""Checks of a diagnosis that are of the node's settings, and not of its hardware."""
_HARDWARE_SAID: Final = re.compile(
    r"(?i)row remap|page retire|retired pages|double.bit|uncorrectable|contained|inforom"
    r"|fallen off|unrecoverable|reset the gpu|xid"
)
"""What the check of the software says of hardware: newer versions have one check for both."""


_IMEX: Final = re.compile(r"IMEX (?:daemon|domain)|IMEX_UNHEALTHY")
"""DCGM says so where no domain of several nodes is in use, or pods of one run it (DCGM#308)."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check or watch that did not pass, how ("fail", "warn", "error"), and what it says.

    ``who`` names the devices, as "GPU 1, 3".
    """

    name: str
    result: str
    who: str = ""
    said: list[str] = field(default_factory=list)


def row_of(line: str, *, closed: bool) -> tuple[str, str] | None:
    """The two cells of a row of dcgmi's tables, without the blanks around them.

    None for other lines, and where ``closed``, for a row without its last bar.
    """
    left, bar, right = line.removeprefix("|").partition("|")
    left, right = left.strip(), right.rstrip()
    if not (line.startswith("|") and bar and (right.endswith("|") or not closed)):
        return None
    right = right.removesuffix("|").strip()
    return (left, right) if len(left) <= _MAX_LEFT and len(right) <= _MAX_RIGHT else None


def check_event(check: Check, source: str, document: str) -> Event:
    """The event of a check: a failure of hardware keeps jobs away from the node."""
    # a word that the table's width has cut goes on in the next row
    said = excerpt(re.sub(r"\s+", " ", " ".join(check.said)), 200)
    gpu = _GPU.search(check.who)
    if gpu is None and not check.who.startswith("GPU-"):
        gpu = _GPU.search(f"{check.name} {said}")
    failed = check.result.startswith(("fail", "err"))
    software = check.name.lower() in _SOFTWARE and _HARDWARE_SAID.search(said) is None
    imex = _IMEX.search(said) is not None
    fatal = failed and not software and not imex
    return Event(
        source=source,
        vendor=VENDOR,
        code=f"DCGM {check.name}",
        meaning=said or ("The check failed" if failed else "The check warns"),
        action="see the check's own words, and run it again",
        todo=str(Action.ISOLATE if fatal else Action.MONITOR),
        fatal=fatal or None,
        reference=document,
        line=f"{check.name}: {check.result} {check.who}".strip(),
        device=f"GPU {gpu.group(1)}"
        if gpu is not None
        else None
        if check.who in ("", "All")
        else check.who,
        unsettled=failed and not fatal,
    )
