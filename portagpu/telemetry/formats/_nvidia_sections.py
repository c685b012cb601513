"""Sections of a text that holds several outputs, each below a banner or at a prompt.

A banner is a frame of "#" lines with a title ("# idle :: query (-q)") and the command
("# $ nvidia-smi -q"); a prompt is the line of a terminal ("user@host:~$ nvidia-smi -L").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from portagpu.telemetry.formats import one_line

_BEGINNING: Final = 4000
_FRAME: Final = re.compile(r"#{10,}\s*")
_PROMPT: Final = re.compile(
    r"[\w.@:~/()\[\] -]{0,80}[$#>] ?(?:sudo |srun (?:\S{1,80} ){0,4})?(nvidia-smi\b.{0,60})"
)
_COMMAND: Final = re.compile(r"# \$ (.{1,60})")


@dataclass(slots=True)
class Section:
    title: str = ""
    command: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return one_line(self.title or self.command, 80) or "the beginning"

    @property
    def state(self) -> str | None:
        """ "idle" of "idle :: query (-q)": what the machine did meanwhile."""
        before, separator, _ = self.title.partition(" :: ")
        return one_line(before, 40) if separator else None


def is_capture(text: str) -> bool:
    """Whether a banner, or two commands at prompts, stand at the beginning."""
    start = text[:_BEGINNING]
    lines = start.splitlines()
    framed = bool(lines) and _FRAME.fullmatch(lines[0]) is not None and "nvidia" in start
    return framed or sum(map(_is_prompt, text[: 50 * _BEGINNING].splitlines())) > 1


def _is_prompt(line: str) -> bool:
    return _PROMPT.fullmatch(line.strip()[:200]) is not None and line[:1].strip() != ""


def sections(text: str) -> list[Section]:
    """The sections of ``text``; the first is what stands before any banner or prompt."""
    found = [Section()]
    banner: list[str] | None = None
    for line in text.splitlines():
        if _FRAME.fullmatch(line) is not None:
            if banner is None:
                banner = []
            else:
                found.append(_framed(banner))
                banner = None
        elif banner is not None and line.startswith("#"):
            banner.append(line)
        elif _is_prompt(line):
            found.append(Section(command=line.strip()))
        else:
            # a frame that is not closed is no banner
            found[-1].lines.extend(banner or ())
            banner = None
            found[-1].lines.append(line)
    return found


def _framed(banner: list[str]) -> Section:
    command = next((m.group(1) for line in banner if (m := _COMMAND.fullmatch(line[:64]))), "")
    return Section(title=banner[0].lstrip("# ").strip() if banner else "", command=command)
