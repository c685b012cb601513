"""How exceptions stand in logs: where a traceback ends, and whether the program ended with it.

A traceback has its head, frames that are indented, and one line that begins with the exception's
name, whatever that is. Nobody caught it where its first frame is the program's own file, where a
child process wrote it, or where the log ends with it. What a program logs as a remark was caught.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.facts.formats.prefixes import Origin

HEAD: Final = "Traceback (most recent call last)"
_MAX_FRAMES: Final = 400
"""Lines in which a traceback ends: other processes write in between."""
_MAX_AFTER: Final = 40
"""Lines after the exception with which a log ends: what launchers and libraries add."""
_MODULE: Final = re.compile(r"\bin ?< ?module ?>")
_CAUGHT: Final = re.compile(
    r"(?i)exception ignored|logging error|\bwarn|\bignor|skipp|\bretry|fall(?:s|ing)? ?back"
    r"|\bcaught\b|optional|exception in thread"
)
_OF_CHILD: Final = re.compile(r"^(?:Process \S{1,80}:$|-- Process \d{1,7} terminated with)")
_GOES_ON: Final = re.compile(
    r"(?i:\b(?:epoch|step|iter(?:ation)?|loss)\b[\W_]{0,4}\d)"
    r"|(?:^|[\s\[])INFO\b(?!.*(?i:kill|sigterm|exit))"
)
"""What a program writes that still runs."""
FOLLOWS: Final = re.compile(
    r"ChildFailedError|CalledProcessError|Process(?:Exited|Raised)Exception|Actor\w{0,20}DiedError"
    r"|RayActorError|RayTaskError|WorkerCrashedError|EngineDeadError|TrainingFailedError|TuneError"
    r"|Broken(?:PipeError|ProcessPool)|Connection(?:Reset|Refused|Aborted)Error|EOFError"
    r"|\b_?queue\.Empty|(?i:see (?:the )?(?:root cause|stack ?trace|logs?)\b)"
)
"""Exceptions that say that another process ended."""
STOPPED: Final = re.compile(r"^(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b")
"""What ends a program without being an error."""


@dataclass(frozen=True, slots=True)
class Traceback:
    """The number of the line with the exception, and whether somebody caught it.

    ``is_caught`` is None where the traceback does not show it.
    """

    number: int
    is_caught: bool | None


def read_traceback(
    lines: Sequence[str], at: int, split: Callable[[str], tuple[Origin, str]]
) -> Traceback | None:
    """The traceback whose head is in the line ``at``; None where it has no end.

    :param lines: all lines of the log.
    :param split: takes the prefixes off a line.
    """
    origin, head = split(lines[at])
    before = next((each for n in range(1, 4) if (each := "".join(lines[at - n : at - n + 1]))), "")
    before = split(before)[1].strip() if at else ""
    first = ""
    for number in range(at + 1, min(at + _MAX_FRAMES, len(lines))):
        if not lines[number].strip():
            continue
        other, line = split(lines[number])
        if other != origin or not line.strip():
            continue
        if line[0] in " \t│╭╰┃┏┗":
            if not first and ("File " in line or "in " in line):
                first = line
            continue
        said = head.partition(HEAD)[0] + " " + before
        if _CAUGHT.search(said):
            return Traceback(number, is_caught=True)
        is_whole = _MODULE.search(first) is not None or _OF_CHILD.search(before) is not None
        return Traceback(number, is_caught=False if is_whole else None)
    return None


def is_last(lines: Sequence[str], number: int) -> bool:
    """Whether the log ends with what stands in a line, but for what launchers add."""
    after = lines[number + 1 : number + 2 + 4 * _MAX_AFTER]
    if number + 1 + len(after) < len(lines):
        return False
    spoken = [each for each in after if each.strip()]
    return len(spoken) <= _MAX_AFTER and not any(map(_GOES_ON.search, spoken))
