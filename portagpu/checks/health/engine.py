"""Judges a node once with the gates of a bring-up that need no device, and gives the results an
action each; every source of the machine is asked once and with a time limit.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from portagpu.base.files import read_bounded
from portagpu.base.text import error_line, excerpt
from portagpu.checks.bringup.checks import environment
from portagpu.checks.bringup.checks.health import check_host
from portagpu.checks.bringup.gates import load_gates
from portagpu.checks.bringup.run import Context, MachineUnderTest, check_function, describe
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.formats.events import TIMES, line_time, table
from portagpu.facts.formats.host import kernel_log
from portagpu.facts.readings.model import Findings, FormatError
from portagpu.machine.inventory.kernel import kernel_findings
from portagpu.machine.inventory.kernel_links import kfd_links, read_infiniband
from portagpu.machine.inventory.sources import (
    LOG_LINES,
    Live,
    Machine,
    kernel_log_output,
    tool_findings,
)
from portagpu.machine.inventory.topology import build_topology
from portagpu.runs.results.advice import with_action
from portagpu.runs.results.run import Run, Verdict
from portagpu.runs.world import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from portagpu.checks.health.options import HealthOptions
    from portagpu.devices.contract import Status
    from portagpu.facts.readings.model import Event
    from portagpu.facts.torchbuild import TorchBuild
    from portagpu.machine.inventory.gpu import Inventory
    from portagpu.machine.inventory.sources import Origin
    from portagpu.machine.inventory.topology import Topology
    from portagpu.runs.results.run import Result


MAX_BYTES: Final = 16 << 20
"""Of a log's file, from its end: 100 000 lines and more."""
MAX_LINES: Final = 20_000
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
    """The log in a file: its last 16 MiB.

    Rejects the log of another machine, and a file that is not a log. A kernel has lines since its
    start, so without one ``of_this_boot`` nothing of it was read.
    """
    try:
        data = read_bounded(path, MAX_BYTES + 1, last=True)
    except OSError as error:
        hint = "; run this as root" if error.errno == errno.EACCES and os.geteuid() else ""
        return KernelLog(problem=f"{path}: cannot be read: {error.strerror or error}{hint}")
    cut = ""
    if len(data) > MAX_BYTES:
        data = data.partition(b"\n")[2]
        cut = f"{path}: only its last {MAX_BYTES >> 20} MiB were read"
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
    if text.count("\n") <= MAX_LINES:
        return text, ""
    words = [word for each in table("kernel_log").keywords.values() for word in each]
    worth = [line for line in text.splitlines() if any(map(line.lower().__contains__, words))]
    if len(worth) <= MAX_LINES:
        return text, ""
    # what a driver said before it began to repeat itself may be the fault: one line of each kind
    older = list({_kind(line): line for line in worth[:-MAX_LINES]}.values())[:MAX_LINES]
    cut = (
        f"only the last {MAX_LINES} lines of drivers and errors were read, of {len(worth)}, and "
        "one of each kind before them"
    )
    return "\n".join([*older, *worth[-MAX_LINES:]]), cut


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
    """The events that are not older; one whose time is unknown is kept."""
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


class Snapshot(Machine):
    """A machine as it is at one moment: this one, or with ``source`` a recording.

    ``log`` is the file of its kernel's log, by default the journal of this machine, and a recording
    has its own. Events before ``since`` are left out ("boot", "all", or seconds). A vendor's
    library and the journal have ``limit_s`` seconds each.
    """

    def __init__(
        self,
        source: Machine | None = None,
        *,
        log: str | None = None,
        since: str | None = None,
        limit_s: float = 30.0,
    ) -> None:
        self._live = Live()
        self._source = source or self._live
        self._recorded = source is not None
        self._limit_s = limit_s
        self._log_file = log
        self.tree = self._source.tree
        self.environment = self._source.environment
        self.software_known = self._source.software_known
        self._tools: tuple[Findings, ...] = ()
        self._since = since or ("all" if self._recorded else "boot")
        self._cutoff = cutoff_s(self._since)

    @cached_property
    def _libraries(self) -> tuple[Findings, ...]:
        from portagpu.devices.discovery import probes

        asked = probes(self._limit_s).values() if self.tree.is_live else ()
        return tuple(each for each in asked if each.readings or each.problems)

    @cached_property
    def _findings(self) -> tuple[Findings, ...]:
        if self._recorded:
            return self._source.findings()
        return (*self._libraries, *kernel_findings(self.tree))

    def ask_tools(self) -> bool:
        """Ask the vendors' command-line tools for links, and say whether devices are known better.

        That is so where no library answered: then what the tools say of devices counts as well.
        """
        self._tools = tuple(tool_findings(self._live.commands(self._findings)))
        answered = [each for each in self._tools if each.readings or each.events]
        if not answered or any(each.readings for each in self._libraries):
            return False
        self._findings = (*self._libraries, *answered, *kernel_findings(self.tree))
        self.__dict__.pop("_inventory", None)
        return True

    @cached_property
    def kernel_log(self) -> KernelLog:
        """The log that was given or read; empty for a recording, whose findings have it."""
        if self._log_file is not None:
            own = not self._recorded
            of_this_boot = own and self._since != "all"
            found = log_file(self._log_file, of_this_machine=own, of_this_boot=of_this_boot)
        elif self._recorded:
            return KernelLog()
        else:
            found = journal(self._limit_s)
            # the journal is of this boot; a clock that was set later must not hide its beginning
            if self._since == "boot":
                return found
        if found.findings is None:
            return found
        events = events_since(found.findings.events, self._cutoff)
        return replace(found, findings=replace(found.findings, events=events))

    @cached_property
    def _inventory(self) -> Inventory:
        found = super().inventory()
        return replace(found, events=events_since(found.events, self._cutoff))

    def findings(self) -> tuple[Findings, ...]:
        return self._findings

    def inventory(self) -> Inventory:
        return self._inventory

    def log(self) -> Findings | None:
        return self.kernel_log.findings

    def topology(self) -> Topology:
        if self._recorded:
            return self._source.topology()
        more = (*self._tools, kfd_links(self.tree), read_infiniband(self.tree))
        return build_topology([*self.findings(), *more])

    def origins(self) -> tuple[Origin, ...]:
        return self._source.origins()

    def torch(self) -> TorchBuild | None:
        return self._source.torch()

    def libraries(self) -> Mapping[str, str]:
        return self._source.libraries()

    def backends(self) -> Mapping[str, Status]:
        return self._source.backends()


SUITE: Final = "health"
_SHARE: Final = 0.6
"""Of the limit, what one library or the journal may take, so that the rest is judged without it."""


def health(options: HealthOptions) -> Run:
    """Judge the node. Raises TargetNotFound, RecordingError, and ValueError for ``since``."""
    *_, last = health_so_far(options)
    return last


def health_so_far(options: HealthOptions) -> Iterator[Run]:
    """The run after each stage, the last one whole: the host with the kernel's log, the devices,
    and their links as the vendors' tools show them.

    A later run has everything that an earlier one has, unless the same was judged better.
    """
    begun_s = time.monotonic()
    target = options.load_target()
    machine = Snapshot(
        _recording(options.replay) if options.replay else None,
        log=options.log,
        since=options.since,
        limit_s=_SHARE * options.limit_s,
    )
    origins = machine.origins()
    gates = {gate.id: gate for gate in load_gates()}
    tested = MachineUnderTest(
        backend=None,
        ranks=Ranks(),
        machine=machine,
        origins=origins,
        target=target,
        wanted=target,
        expect_devices=options.expect_devices,
        from_files=True,
    )
    context = Context(tested, gates["health"], "quick", SUITE)

    def judged(
        gate: str, check: Callable[[Context], Iterator[Result]] | None = None
    ) -> list[Result]:
        context.gate = gates[gate]
        check = check or check_function(context.gate, replay=True)
        return list(_results(context, check)) if check is not None else []

    first = options.new_run(
        replay=[origin.to_json() for origin in origins], host="" if origins else None
    )

    def run_of(*groups: Sequence[Result]) -> Run:
        run = Run(first.info)
        describe(run, context)
        run.extend([with_action(each) for group in groups for each in group])
        return run.finish(duration_s=time.monotonic() - begun_s)

    log = judged("health", _log)
    if not options.replay:
        yield run_of(log, judged("health", check_host))
    devices = _device_gates(judged)
    yield run_of(log, *devices.values())
    if options.tools and not options.replay and machine.inventory().gpus:
        if machine.ask_tools():
            context.tested.devices.clear()
            devices = _device_gates(judged)
        else:
            devices["links"] = judged("links")
        yield run_of(log, *devices.values())


def _device_gates(judged: Callable[..., list[Result]]) -> dict[str, list[Result]]:
    """The results of each gate that judges devices, in the order of a bring-up."""
    return {
        "environment": judged("environment", _sources),
        **{gate: judged(gate) for gate in ("identity", "links", "health")},
    }


def _recording(paths: Sequence[str]) -> Machine:
    # a live machine needs none of the readers of outputs
    from portagpu.checks.recordings.replay import Recording

    return Recording(*paths)


def _results(context: Context, check: Callable[[Context], Iterator[Result]]) -> Iterator[Result]:
    """The results of a check, or one result if it breaks: that stops no other."""
    try:
        yield from check(context)
    except Exception as error:  # noqa: BLE001 - a check that breaks must not end the judgement
        reason = f"the check broke: {error_line(error)}"
        yield context.result("check", Verdict.ERROR, reason)


def _sources(context: Context) -> Iterator[Result]:
    """What was read, and what could not be; declarations that cannot be used."""
    yield environment.recording(context)
    yield from environment.declarations(context)


def _log(context: Context) -> Iterator[Result]:
    """Whether the kernel's log was read, and all of it."""
    machine = context.tested.machine
    assert isinstance(machine, Snapshot)  # noqa: S101 - this engine made it
    log = machine.kernel_log
    if log.problem:
        yield context.result("log", Verdict.INCONCLUSIVE, log.problem)
    elif log.cut:
        yield context.result("log", Verdict.UNVERIFIED, log.cut)
