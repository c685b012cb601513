"""The kernel's log for a judgement: of the journal or of a file, bounded, and since a time."""

from __future__ import annotations

import platform
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.files import read_bounded
from portagpu.base.text import excerpt
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.events import TIMES, line_time, table
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.readings.model import Findings, FormatError
from portagpu.machine.inventory.sources import LOG_LINES, kernel_log_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from portagpu.facts.readings.model import Event

LARGEST_BYTES: Final = 16 << 20
"""Of a log's file, from its end: 100 000 lines and more."""
MOST_LINES: Final = 20_000
"""Of those that may be events, the last ones: a driver in trouble repeats itself all day."""
_JOURNAL: Final = b"LPKSHHRH"
"""The first bytes of the journal's own files (systemd, JOURNAL_FILE_FORMAT)."""
_LONG_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|\d{6,}")
_HOST: Final = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT\S{8,30}) (?P<host>[\w.-]{1,253}) "
    r"(?P<program>[\w./-]{1,100})(?=[\[:])"
)
_PROGRAMS: Final = ("kernel", "nv-fabricmanager")
"""Whose lines count: anybody may write to a system's log, in whatever words."""
_SLACK_S: Final = 5.0
"""The clock of the log and that of the boot time are not the same."""
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What a log says of errors; ``problem`` is why it was not read, ``cut`` what was left out.

    With a ``problem`` there are findings where it is the log of something else than the kernel.
    """

    findings: Findings | None = None
    problem: str = ""
    cut: str = ""


def journal(limit_s: float) -> KernelLog:
    """The log of this machine's kernel since its start, by journalctl or dmesg."""
    output = kernel_log_output(limit_s)
    if output.problem:
        return KernelLog(problem=output.problem)
    found = _parsed(output.text)
    if output.text.count("\n") < LOG_LINES:
        return found
    cut = f"only the last {LOG_LINES} lines of the journal were read"
    return replace(found, cut="; ".join(filter(None, (cut, found.cut))))


def log_file(path: Path | str, *, of_this_machine: bool, of_this_boot: bool = False) -> KernelLog:
    """The log in a file: its last 16 MiB. Of another machine it is refused, and so is no log.

    A kernel has lines since its start, so without one ``of_this_boot`` nothing of it was read.
    """
    try:
        data = read_bounded(path, LARGEST_BYTES + 1, last=True)
    except OSError as error:
        return KernelLog(problem=f"{path}: cannot be read: {error.strerror or error}")
    cut = ""
    if len(data) > LARGEST_BYTES:
        data = data.partition(b"\n")[2]
        cut = f"{path}: only its last {LARGEST_BYTES >> 20} MiB were read"
    if data.startswith(_JOURNAL):
        reason = f"{path}: is the journal's own file: give what `journalctl -k --file FILE` prints"
        return KernelLog(problem=reason)
    text = decode_text(data)
    lines = [
        (line, _host(line))
        for line in text.splitlines()
        if (said := _HOST.match(line)) is None or said["program"] in _PROGRAMS
    ]
    hosts = {host for _, host in lines if host}
    here = platform.node().partition(".")[0]
    if of_this_machine and hosts and here not in hosts:
        shown = excerpt(min(hosts), 60)
        reason = f"{path}: is the log of {shown}, and not of this machine: judge it with --replay"
        return KernelLog(problem=reason)
    others = ""
    # a collector's file has the lines of many machines
    foreign = hosts - {here, "localhost"} if of_this_machine else set()
    if foreign:
        others = f"{path}: lines of other hosts were left out, as of {excerpt(min(foreign), 60)}"
    own = [line for line, host in lines if host not in foreign]
    found = _parsed("".join(f"{line}\n" for line in own))
    problem = found.problem
    if not problem and of_this_boot and (last := _last_time_before_boot(own)):
        problem = f"its last line is of {last}, before this machine was started"
    left_out = "; ".join(filter(None, (cut, others, found.cut)))
    if not problem:
        return replace(found, cut=left_out)
    known = found.findings and replace(found.findings, kind=kernel_log.UNREAD)
    return KernelLog(known, f"{kernel_log.NOT_READ}: {path}: {problem}", left_out)


def _last_time_before_boot(lines: Sequence[str]) -> str:
    """The time of the last line that has one, if that is before this boot; else ""."""
    boot, now = boot_s(), time.time()
    for line in reversed(lines):
        text = line_time(line)
        at = None if text is None else _instant_s(text, boot, now)
        if at is not None:
            return text or "" if at < boot - _SLACK_S else ""
    return ""


def _host(line: str) -> str:
    """The short name of the host that wrote the line; "" where it does not say."""
    match = _HOST.match(line)
    return match["host"].partition(".")[0] if match is not None else ""


def _parsed(text: str) -> KernelLog:
    kept, cut = _last_lines(text)
    problem = "" if kernel_log.has_kernel_lines(text) else kernel_log.NO_LINE
    try:
        found = kernel_log.parse(kept)
    except FormatError:
        return KernelLog(problem=problem)
    # a container sees the log of its host, whose GPUs are not all its own
    return KernelLog(Findings(kind=found.kind, events=found.events), problem, cut)


def _last_lines(text: str) -> tuple[str, str]:
    """(the text, "") or (its last lines that may be events, what was left out)."""
    if text.count("\n") <= MOST_LINES:
        return text, ""
    words = [word for each in table("kernel_log").keywords.values() for word in each]
    worth = [line for line in text.splitlines() if any(map(line.lower().__contains__, words))]
    if len(worth) <= MOST_LINES:
        return text, ""
    # what a driver said before it began to repeat itself may be the fault: one line of each kind
    older = list({_kind(line): line for line in worth[:-MOST_LINES]}.values())[:MOST_LINES]
    cut = (
        f"only the last {MOST_LINES} lines of drivers and errors were read, of {len(worth)}, and "
        "one of each kind before them"
    )
    return "\n".join([*older, *worth[-MOST_LINES:]]), cut


def _kind(line: str) -> str:
    """The line without its time and long numbers; those of a code and an address are short."""
    time = TIMES.match(line)
    return _LONG_NUMBERS.sub("", line[time.end() :] if time is not None else line)


def cutoff_s(since: str) -> float | None:
    """The time after which events count, in seconds since 1970; None for all of them.

    ``since`` is "all", "boot" or a number of seconds before now. Raises ValueError for others.
    """
    if since == "all":
        return None
    if since == "boot":
        return boot_s() - _SLACK_S
    seconds = float(since)
    if not seconds > 0:
        raise ValueError("a number of seconds above 0")
    return time.time() - seconds


def boot_s() -> float:
    """When this machine's kernel started, in seconds since 1970."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def events_since(events: Iterable[Event], cutoff: float | None) -> tuple[Event, ...]:
    """The events that are not older; one whose time nobody can tell is kept."""
    if cutoff is None:
        return tuple(events)
    boot, now = boot_s(), time.time()
    kept = []
    for event in events:
        at = None if event.time is None else _instant_s(event.time, boot, now)
        if at is None or at >= cutoff:
            kept.append(event)
    return tuple(kept)


def _instant_s(text: str, boot: float, now: float) -> float | None:
    """When a line says that it was written; seconds without a date count from this boot."""
    try:
        return boot + float(text)
    except ValueError:
        pass
    try:
        # without a zone it is this machine's, as journalctl and dmesg print it
        return datetime.fromisoformat(text.replace(",", ".")).timestamp()
    except ValueError:
        pass
    for form, whole in (
        ("%a %b %d %H:%M:%S %Y", text),
        ("%b %d %H:%M:%S %Y", f"{text} {_year(now)}"),
    ):
        try:
            found = datetime.strptime(whole, form).timestamp()
        except ValueError:
            continue
        if found > now + _DAY_S:
            # syslog writes no year: December's lines, read in January
            return datetime.strptime(f"{text} {_year(now) - 1}", form).timestamp()
        return found
    return None


def _year(now: float) -> int:
    return datetime.fromtimestamp(now).astimezone().year
