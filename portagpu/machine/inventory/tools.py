"""Run the vendors' tools on this machine, one after the other, each with a time limit.

The command lines are the plugins' (``Plugin.commands``); nothing goes through a shell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.patience import LIMITS
from portagpu.base.subprocesses import run_program
from portagpu.base.text import excerpt, one_line
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.formats.reader import read_text
from portagpu.facts.readings.model import Findings, FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LOG_LINES: Final = 100_000
"""Lines of the journal that are read, the last ones."""
_LOG_COMMANDS: Final = (
    # -q leaves out marks and hints, and -n bounds what a kernel that repeats itself wrote
    (
        *("journalctl", "--dmesg", "--no-hostname", "--no-pager", "--quiet"),
        *("--output=short-iso", f"--lines={LOG_LINES}"),
    ),
    ("dmesg",),
)
"""journalctl(1) of systemd; it keeps what the kernel's own ring has overwritten."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed; ``problem`` says in one sentence why it printed nothing usable."""

    command: tuple[str, ...]
    text: str = ""
    problem: str = ""


def run_commands(
    commands: Iterable[Sequence[str]], limit_s: float = LIMITS.program_s
) -> Iterator[CommandOutput]:
    """The output of each command; tools that are not installed are left out."""
    for command in commands:
        found = _run_command(tuple(command), limit_s)
        if found is not None:
            yield found


def tool_findings(commands: Iterable[Sequence[str]]) -> Iterator[Findings]:
    """The findings in the output of each command."""
    for output in run_commands(commands):
        kind = " ".join(output.command)
        if output.problem:
            yield Findings(kind=kind, problems=(output.problem,))
            continue
        try:
            yield from read_text(output.text)
        except FormatError as error:
            yield Findings(kind=kind, problems=(f"{kind}: {error}",))


def kernel_log_output(limit_s: float = LIMITS.program_s) -> CommandOutput:
    """The kernel's log since its start, of the first command that may read it.

    ``problem`` says why none did.
    """
    printed = list(run_commands(_LOG_COMMANDS, limit_s))
    read = (e for e in printed if not e.problem and kernel_log.has_kernel_lines(e.text))
    said = [each.problem for each in printed if each.problem]
    why = said[-1] if said else "neither journalctl nor dmesg shows it"
    return next(read, CommandOutput(("dmesg",), problem=f"the kernel's log is not read: {why}"))


def _run_command(command: tuple[str, ...], limit_s: float) -> CommandOutput | None:
    name = " ".join(command)
    try:
        # words and numbers as the readers know them
        done = run_program(*command, limit_s=limit_s, environment={"LC_ALL": "C"})
    except FileNotFoundError:
        return None
    except TimeoutError as error:
        return CommandOutput(command, problem=f"{name} {error}")
    except OSError as error:
        return CommandOutput(command, problem=f"{name} cannot be started: {error.strerror}")
    text = decode_text(done.stdout)
    if done.returncode or not text.strip():
        said = excerpt(one_line(decode_text(done.stderr) or text)) or "nothing"
        return CommandOutput(command, text, f"{name} ended with status {done.returncode}: {said}")
    return CommandOutput(command, text)
