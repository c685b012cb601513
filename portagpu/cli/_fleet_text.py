"""Shared by the verbs of ``portagpu fleet``: steps in words, and the verdict of all of them."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Final

from portagpu.base.text import shortened
from portagpu.base.units import count, duration
from portagpu.cli._heartbeat import MIN_DONE, left_words
from portagpu.reports.fleet.record import StepState
from portagpu.runs.results.verdicts import Verdict, exit_code, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from portagpu.reports.fleet.record import FleetRecord, Step

_MAX_CHARS: Final = 300
_COMPARABLE: Final = 5
"""From this many nodes on, a slow one is in fewer than half of all pairs, and not in the median."""
_HEADS: Final = {
    StepState.WAITING: "not submitted",
    StepState.SUBMITTED: "in the queue",
    StepState.RUNNING: "running",
    StepState.LOST: "LOST",
}


def step_line(step: Step) -> str:
    """ "node-7  FAIL  links: links/active: 3 of 8 links are up; action: isolate"."""
    state = step.verdict if step.state is StepState.DONE and step.verdict else _HEADS[step.state]
    gate = f"gate {step.gate}: " if step.gate else ""
    action = f"; action: {step.action}" if step.action not in (None, "none") else ""
    detail = shortened(f"{gate}{step.reason}", _MAX_CHARS)
    return f"{'+'.join(step.nodes)}  {state}" + (f"  {detail}{action}" if detail or action else "")


def counts_line(record: FleetRecord) -> str:
    """ "61 of 64 done (60 PASS, 1 FAIL), 2 running, 1 lost"."""
    states = Counter(step.state for step in record.steps)
    verdicts = Counter(step.verdict for step in record.steps if step.state is StepState.DONE)
    detail = ", ".join(f"{verdicts[each]} {each}" for each in Verdict if verdicts[each])
    others = [
        f"{states[state]} {words.lower()}" for state, words in _HEADS.items() if states[state]
    ]
    done = f"{states[StepState.DONE]} of {count(len(record.steps), 'step')} done"
    return ", ".join([f"{done} ({detail})" if detail else done, *others])


class StepPace:
    """How long the steps of a fleet run take, and when all of them may be over.

    Only steps whose beginning and end this command saw count: those of an earlier one have no
    times.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_s: dict[str, float] = {}
        self._took_s: list[float] = []

    def changed(self, step: Step) -> None:
        """A step has another state."""
        if step.state is StepState.RUNNING:
            self._begun_s.setdefault(step.id, self._clock())
            return
        begun_s = self._begun_s.pop(step.id, None)
        if step.state is StepState.DONE and begun_s is not None:
            self._took_s.append(self._clock() - begun_s)

    def left_s(self, record: FleetRecord) -> float | None:
        """Seconds until the steps that run, and those that wait for them, are over; None where
        too few steps came to their end, none runs, or the last ones take twice as long."""
        if len(self._took_s) < MIN_DONE or not self._begun_s:
            return None
        usual_s, now_s = median(self._took_s), self._clock()
        rest_s = [usual_s - (now_s - begun_s) for begun_s in self._begun_s.values()]
        waiting = sum(
            each.state in (StepState.WAITING, StepState.SUBMITTED) for each in record.steps
        )
        if min(rest_s) < -usual_s and not waiting:
            return None
        return max(*rest_s, 0.0) + usual_s * waiting / len(self._begun_s)

    def words(self, record: FleetRecord) -> str:
        """ "61 of 64 steps done (61 PASS), 3 running, about 40 s left".

        Where steps run longer than the others did, the first of them stands there in place of the
        time left: "gpu03 has run for 90 s".
        """
        left_s = self.left_s(record)
        if left_s is not None:
            return f"{counts_line(record)}, {left_words(left_s)}"
        if len(self._took_s) < MIN_DONE or not self._begun_s:
            return counts_line(record)
        step, begun_s = next(iter(self._begun_s.items()))
        return f"{counts_line(record)}, {step} has run for {duration(self._clock() - begun_s)}"


def verdict_of(record: FleetRecord, slow: Sequence[str] = ()) -> Verdict:
    """The fold of all steps; one that is not done leaves it INCONCLUSIVE at best.

    A node or link that is slow among its peers is a FAIL.
    """
    verdicts = [
        Verdict(step.verdict)
        if step.state is StepState.DONE and step.verdict
        else Verdict.INCONCLUSIVE
        for step in record.steps
    ]
    return fold([*verdicts, *(Verdict.FAIL for _ in slow)])


def slow_sentences(record: FleetRecord, folder: Path) -> list[str]:
    """The slow nodes and links that rounds of pairs show; empty for another run."""
    if record.what != "collectives":
        return []
    from portagpu.reports.fleet.measures import slow_of

    return [each.sentence for each in slow_of(folder)]


def closing_lines(
    record: FleetRecord, folder: object, slow: Sequence[str] = (), said: Sequence[str] = ()
) -> list[str]:
    """The nodes that are not as they should be, the verdict, and how to go on.

    ``said`` are the lines of steps that were just printed: the same list is not printed twice.
    """
    bad = [step for step in record.steps if step.verdict != Verdict.PASS]
    lines = [step_line(step) for step in bad if step.state in (StepState.DONE, StepState.LOST)]
    if lines == list(said):
        lines = []
    lines += [f"SLOW  {each}" for each in slow]
    if record.what == "collectives" and len(record.nodes) < _COMPARABLE:
        few = count(len(record.nodes), "node")
        lines.append(
            f"{few}: too few to find a slow node or link; that needs at least {_COMPARABLE}"
        )
    open_ = sum(step.state is not StepState.DONE for step in record.steps)
    go_on = "; repeat the command to go on with the others" if open_ else ""
    place = shlex.quote(str(folder))
    head = ["", *lines, ""] if lines else [""]
    return [
        *head,
        f"{verdict_of(record, slow)}: {counts_line(record)}; results are in {place}{go_on}",
    ]


def code_of(record: FleetRecord, slow: Sequence[str] = ()) -> int:
    """The exit code of :func:`verdict_of`."""
    return exit_code(verdict_of(record, slow))
