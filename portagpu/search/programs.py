"""A program is a list of calls; a call is a name and its arguments, as JSON holds them."""

from __future__ import annotations

import json
from typing import Any

from portagpu.errors import PortagpuError

Call = tuple[str, dict[str, Any]]
"""A call's name, and its arguments by name: numbers, texts, lists and None."""
Program = list[Call]

_LONGEST_LINE = 400


class ProgramError(PortagpuError, ValueError):
    """A text that is no program; the message says what it should be."""


def to_text(area: str, program: Program) -> str:
    """The program in one line, as ``--program`` takes it."""
    calls = [[name, arguments] for name, arguments in program]
    return f"{area} {json.dumps(calls, separators=(',', ':'))}"


def from_text(text: str) -> tuple[str, Program]:
    """The area and the program of a line that :func:`to_text` wrote; raises ProgramError."""
    area, _, calls = text.strip().partition(" ")
    try:
        found = json.loads(calls)
        program = [(name, arguments) for name, arguments in found]
    except (ValueError, TypeError):
        program = []
    if not program or not all(
        isinstance(name, str) and isinstance(arguments, dict) for name, arguments in program
    ):
        raise ProgramError(
            f"{text[:60]!r} is no program: copy what stands behind --program in the failure, with "
            "its quotes"
        )
    return area, program


def program_line(program: Program) -> str:
    """The program for people: ``seed(value=3); rand(n=5)``; a long one is cut."""
    line = "; ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in program
    )
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
