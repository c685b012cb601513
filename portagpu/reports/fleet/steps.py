"""The steps of a fleet run: on which nodes each runs, and what it left in its folder."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError
from portagpu.base.files import read_bounded
from portagpu.base.text import excerpt, one_line
from portagpu.reports.bundles.files import read_file
from portagpu.reports.fleet.record import Step, StepState
from portagpu.runs.results.advice import worst_action
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from portagpu.runs.results.run import RunInfo


def single_steps(names: Sequence[str]) -> tuple[Step, ...]:
    """One step for each node."""
    return tuple(Step(id=name, nodes=(name,)) for name in names)


def joint_steps(names: Sequence[str], rounds: int, group: int | None = None) -> tuple[Step, ...]:
    """``rounds`` of pairs in which each node has another partner each time, then groups of nodes.

    A pair that is slow may have a slow node or a slow link: a node's other pairs show which.
    Groups are of neighbours in the list, and load what pairs leave idle: switches and uplinks.
    """
    found = [
        Step(id=f"{first}+{second}", nodes=(first, second), round=number)
        for number, pairs in enumerate(pair_rounds(names)[:rounds])
        for first, second in pairs
    ]
    if group is not None:
        found += [
            Step(id=f"group-{start // group}", nodes=tuple(own), round=rounds)
            for start in range(0, len(names), group)
            if len(own := names[start : start + group]) == group
        ]
    return tuple(found)


def pair_rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A round robin by the circle method: every two nodes meet once, and no node is twice in a
    round. With an odd number one node rests in each round.
    """
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    return [list(_round(places, number)) for number in range(len(places) - 1)]


def _round(places: Sequence[str | None], number: int) -> Iterator[tuple[str, str]]:
    # the first stays, and the others go round it
    turning = len(places) - 1
    circle = [places[0], *(places[1 + (place + number) % turning] for place in range(turning))]
    for low in range(len(circle) // 2):
        first, second = circle[low], circle[-1 - low]
        if first is not None and second is not None:
            yield min(first, second), max(first, second)


ENDED: Final = "ended"
"""The file in which ``step.sh`` writes the job's number and the command's exit code."""
RESULT: Final = "result.json"
_NO_PROGRAM: Final = (126, 127)
"""A shell's exit codes for a command that cannot be run, and one that is not there."""
_INTERRUPTED: Final = 130
"""The command's exit code after Ctrl-C, SIGTERM and SIGHUP."""
_SIGNAL: Final = 128
"""A shell's exit code for a command that a signal ended is above this by the signal's number."""


def came_to_its_end(folder: Path, job: str) -> bool:
    """Whether the step's command ended by itself in that job.

    The folder is listed first: a network file system then asks its server what is there.
    """
    try:
        os.listdir(folder)  # noqa: PTH208 - for its effect alone
        return _ended(folder)[:1] == [job]
    except OSError:
        return False


def collected(folder: Path, step: Step) -> tuple[Step, RunInfo | None]:
    """``step`` with what its result says, DONE or LOST with the reason; and what ran there.

    ``folder`` is that of the step, whose command came to its end.
    """
    try:
        run = read_file(folder / RESULT).run
    except ResultError as error:
        return lost(step, _why_no_result(folder, error)), None
    code = _exit_code(folder) or 0
    if run.info.interrupted:
        why = f"the command was stopped before its end: {one_line(run.why)}"
        # it was not asked to stop: a full disk, or an error of its own
        logged = "" if code == _INTERRUPTED else last_line(folder / "job.log")
        return lost(step, f"{why}; the log ends: {logged}" if logged else why), None
    if code > _SIGNAL and run.verdict not in FAILING:
        number = code - _SIGNAL
        why = f"signal {number} ended the command after it wrote a result without a failure"
        return lost(step, why), None
    failure = run.first_failure
    done = replace(
        step,
        state=StepState.DONE,
        result=f"{step.id}/{RESULT}",
        verdict=str(run.verdict),
        gate=failure.area if failure else None,
        reason="" if run.verdict is Verdict.PASS else one_line(run.why),
        action=str(worst_action(run.results)),
    )
    return done, run.info


def lost(step: Step, reason: str) -> Step:
    """``step`` without a result, and why."""
    return replace(step, state=StepState.LOST, reason=excerpt(one_line(reason), 400))


def _why_no_result(folder: Path, error: ResultError) -> str:
    """Why a command that came to its end left no result."""
    code = _exit_code(folder)
    if code in _NO_PROGRAM or not (folder / RESULT).exists():
        logged = last_line(folder / "job.log")
        return f"the command left no result and exit code {code}: {logged or 'it logged nothing'}"
    return str(error).removeprefix(f"{folder}/")


def _exit_code(folder: Path) -> int | None:
    try:
        words = _ended(folder)
    except OSError:
        return None
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def _ended(folder: Path) -> list[str]:
    return read_bounded(folder / ENDED, 100).decode("ascii", "replace").split()


def last_line(log: Path) -> str:
    """The last line of a log that portagpu wrote, or else the last of all; empty without a log.

    srun and Slurm add their own lines after the reason. Only the end of the log is read.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    logged = [line for line in reversed(lines) if line.strip()]
    own = next((line for line in logged if line.startswith("portagpu: ")), "")
    return excerpt((own or next(iter(logged), "")).removeprefix("portagpu: "))
