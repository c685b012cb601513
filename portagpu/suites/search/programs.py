"""A program is a list of calls; a call is a name and its arguments, as JSON holds them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.text import did_you_mean

Call = tuple[str, dict[str, Any]]
"""A call's name, and its arguments by name: numbers, texts, lists and None."""
Program = list[Call]
Runners = Mapping[str, Callable[..., Any]]
"""What runs each call, by its name: the arguments of the call are parameters of that name."""

_LONGEST_LINE = 400
_NOT_DRAWN: Final = frozenset({"self", "gpu", "index", "name", "rank", "ranks"})
"""Parameters of what runs a call that are no arguments of the call."""


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


def methods(run: type, prefix: str = "") -> Runners:
    """The methods by which a class runs calls, the ones of that prefix: ``_draw`` for "draw".

    Without a prefix those are its public methods.
    """
    named = {
        name.removeprefix(prefix): each
        for name, each in vars(run).items()
        if inspect.isfunction(each) and name.startswith(prefix)
    }
    return {name: each for name, each in named.items() if not name.startswith("_")}


def check_calls(area: str, program: Program, known: Runners) -> None:
    """Raise ProgramError for a call, or an argument of it, that the area does not know."""
    for name, given in program:
        if name not in known:
            hint = did_you_mean(name, known, "the program may be of another version")
            raise ProgramError(f"{area} has no call {name!r}: {hint}")
        parameters = {
            key: each
            for key, each in inspect.signature(known[name]).parameters.items()
            if key not in _NOT_DRAWN
        }
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for key in () if takes_any else given:
            if key not in parameters:
                hint = did_you_mean(key, parameters, f"it has {', '.join(parameters)}")
                raise ProgramError(f"the call {name!r} of {area} has no argument {key!r}: {hint}")
        for key, each in parameters.items():
            if (
                each.kind is not each.VAR_KEYWORD
                and each.default is each.empty
                and key not in given
            ):
                raise ProgramError(f"the call {name!r} of {area} needs the argument {key!r}")
