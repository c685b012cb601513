"""The answer to a scheduler (``health --gate``): may it use the node, why, and an exit code.

Sources: Slurm's prolog and epilog guide (no Slurm command in either, a failure drains the node);
slurm.conf(5), "Standard output and error messages are normally not preserved", and a
HealthCheckProgram is killed after 60 s and has to drain the node itself; Node Problem Detector,
pkg/custompluginmonitor/types: 0 OK, 1 NonOK, 2 Unknown, max_output_length 80 bytes, timeout 5 s.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.files import write_atomic
from portagpu.base.text import one_line
from portagpu.runs.results.advice import Action, action_of
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import without_device

if TYPE_CHECKING:
    from portagpu.runs.results.run import Result, Run


class Hook(StrEnum):
    """What of a scheduler calls, and reads the answer."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    HEALTHCHECK = "healthcheck"
    NPD = "npd"


class State(StrEnum):
    """What the answer says of the node."""

    WELL = "well"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    """Nothing was found, and not everything was judged."""


LIMIT_S: Final = {Hook.PROLOG: 8.0, Hook.EPILOG: 8.0, Hook.HEALTHCHECK: 50.0, Hook.NPD: 4.0}
"""Below what each allows: Slurm's MessageTimeout of 10 s, its 60 s, and NPD's timeout of 5 s."""
ASKS_TOOLS: Final = frozenset({Hook.HEALTHCHECK})
"""The hooks that have time for the vendors' command-line tools."""
FAIL_ON: Final = Action.ISOLATE
REASON_FILE: Final = Path("/run/portagpu/health.txt")
"""The reason for the operator, where this runs as root."""
NPD_BYTES: Final = 80
_UNJUDGED: Final = frozenset({Verdict.INCONCLUSIVE, Verdict.ERROR})
_SYSLOG: Final = "/dev/log"
_DAEMON: Final = 3 << 3
_PRIORITY: Final = {State.FAULTY: 3, State.UNKNOWN: 4}
"""Error and warning, of the facility "daemon" (RFC 5424); a node that is well is not news."""
_SYSLOG_BYTES: Final = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a scheduler; ``reason`` is one line."""

    state: State
    action: Action
    reason: str

    def exit_code(self, hook: Hook, *, fail_on_unknown: bool = False) -> int:
        """0 lets the node be used. 1 is a fault; what was not judged is 3, and 2 for NPD."""
        if self.state is State.WELL:
            return 0
        if self.state is State.FAULTY:
            return 1
        if hook is Hook.NPD:
            return 2
        return 3 if fail_on_unknown else 0


def answer(run: Run, fail_on: Action = FAIL_ON) -> Answer:
    """The answer for a judged node: faulty where a finding asks for ``fail_on`` or more."""
    found = sorted(run.results, key=action_of, reverse=True)
    found = [each for each in found if action_of(each) is not Action.NONE]
    worst = action_of(found[0]) if found else Action.NONE
    if worst >= fail_on:
        faults = sum(action_of(each) >= fail_on for each in found)
        return Answer(State.FAULTY, worst, f"{worst}: {_in_words(found[0])}{_and_more(faults - 1)}")
    below = f"{_in_words(found[0])}{_and_more(len(found) - 1)}" if found else ""
    left = [each for each in run.results if each.verdict in _UNJUDGED]
    # that time ran out says more than what is missing because of it
    left.sort(key=lambda each: each.id not in ("health/time", "health/log"))
    if left or not any(each.verdict is Verdict.PASS for each in run.results):
        first = _in_words(left[0]) if left else "nothing was judged"
        unjudged = f"not judged: {first}{_and_more(len(left) - 1)}"
        # NPD cuts the line, and a fault that a reset mends says more than what was not judged
        parts = [unjudged, f"{worst}: {below}"] if below else [unjudged]
        parts = parts[::-1] if worst >= Action.RESET else parts
        return Answer(State.UNKNOWN, worst, "; ".join(parts))
    return Answer(State.WELL, worst, f"{worst}: {below}" if below else "no finding")


def broken(error: BaseException) -> Answer:
    """The answer where the judgement itself broke: nothing is known of the node."""
    reason = one_line(str(error)) or type(error).__name__
    return Answer(State.UNKNOWN, Action.NONE, f"not judged: {reason}")


def _in_words(result: Result) -> str:
    where = f" on {result.device}" if result.device else ""
    return f"{result.id}{where}: {without_device(result)}"


def _and_more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""


def npd_line(given: Answer) -> str:
    """The reason in at most 80 bytes, which is where Node Problem Detector cuts it."""
    data = given.reason.encode()
    if len(data) <= NPD_BYTES:
        return given.reason
    return data[: NPD_BYTES - 2].decode(errors="ignore") + ".."


def inform_operator(given: Answer, hook: Hook, reason_file: Path | None = None) -> list[str]:
    """Leave the reason in the file and, unless the node is well, in the system's log.

    By default the file is ``REASON_FILE`` where this runs as root, and none otherwise. Returns
    what could not be written: that changes no verdict, and never waits.
    """
    problems = []
    default = REASON_FILE if os.geteuid() == 0 else None
    place = reason_file or default
    if place is not None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            if place == REASON_FILE:
                place.parent.mkdir(mode=0o755, exist_ok=True)
            write_atomic(place, f"{stamp} {hook} {given.state} {given.reason}\n")
        except (OSError, PortagpuError) as error:
            problems.append(f"the reason is not in {place}: {error}")
    priority = _PRIORITY.get(given.state)
    if priority is not None:
        text = f"<{_DAEMON | priority}>portagpu-health[{os.getpid()}]: {hook}: {given.reason}"
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as log:
            log.setblocking(False)
            try:
                log.sendto(text.encode()[:_SYSLOG_BYTES], _SYSLOG)
            except OSError as error:
                problems.append(f"the reason is not in the system's log: {error.strerror}")
    return problems
