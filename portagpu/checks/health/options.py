"""What a judgement of a node is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.runs.engine import RunOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S: Final = 60.0
"""Seconds for a judgement without another limit: the tools of eight GPUs take some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions(RunOptions):
    """The options of a judgement.

    ``replay`` are the files of a recording to judge instead of this machine, and ``log`` is a file
    of its kernel's log. Events before ``since`` are left out: "boot", "all" or a number of seconds;
    by default those of this boot, and all of a recording. ``limit_s`` is how long everything may
    take together. With ``tools`` the vendors' command-line tools are asked for links between GPUs.
    """

    expect_devices: int | None = None
    replay: Sequence[str] = ()
    log: str | None = None
    since: str | None = None
    limit_s: float = LIMIT_S
    tools: bool = True
