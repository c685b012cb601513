"""What the vendors' tools print on this machine: asked one after the other, never waited for long.

The command lines are the plugins' (``Plugin.commands``); nothing goes through a shell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.formats.cleaning import text_of
from portagpu.formats.host import kernel_log
from portagpu.formats.reader import read_text
from portagpu.readings.model import Findings, FormatError
from portagpu.subprocesses import run_program
from portagpu.text import excerpt, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LOG_COMMANDS: Final = (
    # -q leaves out "-- No entries --", and -n bounds what a kernel that repeats itself wrote
    (
        *("journalctl", "--dmesg", "--no-hostname", "--no-pager", "--quiet"),
        *("--output=short-iso", "--lines=100000"),
    ),
    ("dmesg",),
)
"""journalctl(1) of systemd; it keeps what the kernel's own ring has overwritten."""

LIMIT_S: Final = 30.0
"""nvidia-smi without persistence mode initialises every GPU first, which takes seconds each."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed; ``problem`` says in one sentence why it printed nothing usable."""

    command: tuple[str, ...]
    text: str = ""
    problem: str = ""


def outputs(commands: Iterable[Sequence[str]], limit_s: float = LIMIT_S) -> Iterator[Output]:
    """What each command prints; a tool that is not installed is left out without a word."""
    for command in commands:
        found = _run(tuple(command), limit_s)
        if found is not None:
            yield found


def tool_findings(commands: Iterable[Sequence[str]]) -> Iterator[Findings]:
    """What each command says of the machine."""
    for output in outputs(commands):
        kind = " ".join(output.command)
        if output.problem:
            yield Findings(kind=kind, problems=(output.problem,))
            continue
        try:
            yield from read_text(output.text)
        except FormatError as error:
            yield Findings(kind=kind, problems=(f"{kind}: {error}",))


def kernel_log_output(limit_s: float = LIMIT_S) -> Output:
    """The kernel's log since its start, of the first command that may read it.

    ``problem`` says why none did.
    """
    printed = list(outputs(_LOG_COMMANDS, limit_s))
    read = (each for each in printed if not each.problem and kernel_log.matches(each.text))
    said = [each.problem for each in printed if each.problem]
    why = said[-1] if said else "neither journalctl nor dmesg shows it"
    return next(read, Output(("dmesg",), problem=f"the kernel's log is not read: {why}"))


def _run(command: tuple[str, ...], limit_s: float) -> Output | None:
    name = " ".join(command)
    try:
        # words and numbers as the readers know them
        done = run_program(*command, limit_s=limit_s, environment={"LC_ALL": "C"})
    except FileNotFoundError:
        return None
    except TimeoutError as error:
        return Output(command, problem=f"{name} {error}")
    except OSError as error:
        return Output(command, problem=f"{name} cannot be started: {error.strerror}")
    text = text_of(done.stdout)
    if done.returncode or not text.strip():
        said = excerpt(one_line(text_of(done.stderr) or text)) or "nothing"
        return Output(command, text, f"{name} ended with status {done.returncode}: {said}")
    return Output(command, text)
