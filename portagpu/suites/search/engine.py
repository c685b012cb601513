"""The search: rounds in forked processes, and what becomes of a program that fails in one.

A round is at most ``ROUND_S`` long. If its process dies or hangs, the program is known from the
journal, and the next round begins in a fresh process with the next seed. A failure is repeated
before it is reported: :class:`Failure` says how often it was seen. Where a program does not fail
alone, an earlier one may have damaged what it uses: then it is repeated after the last ones before
it. Where an area lists its programs, each runs once in the order of the seed, and the search goes
on after one that differs.

On a busy machine a program may be slow and not hang, and what differs now and then may do so
because of what else runs. Such a difference is not judged; a wrong value always is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from portagpu.base.documents import decode
from portagpu.base.errors import PortagpuError
from portagpu.base.files import Scratch
from portagpu.base.patience import LIMITS, Starvation
from portagpu.runs.world import RankState
from portagpu.suites.search.area import (
    MAX_PASS,
    Difference,
    Kind,
    excuse,
    from_text,
    kind_of,
    program_line,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from portagpu.runs.world import WorldOutcome
    from portagpu.suites.search.area import Program

ROUND_S: Final = 10.0
"""The length of a round."""
MIN_PROGRAMS: Final = 5
"""Minimum programs of a search, unless they take longer than ``MIN_S``. The first is the simplest
there is, and does not count towards the time."""
MIN_S: Final = 1.0
SHRINK_S: Final = 3.0
REPEATS: Final = 10
"""How often a program that differed is run again."""
LOST_REPEATS: Final = 2
"""How often a program that died or hung is run again, each time in a fresh process.

The ten repetitions of a program stop when one more than that died or hung."""
LOST_SHRINK_S: Final = 25.0
"""How long the shortest program that dies is looked for: each try needs a fresh process."""
MAX_LOST: Final = 3
"""The search ends after this many programs that died, hung or were not judged."""
LISTED_ROUND_S: Final = 60.0
"""The length of a round of listed programs: it is long where their database is slow to load."""
MAX_LISTED: Final = 20
"""The search ends after this many listed programs that differ."""
_ROUNDS: Final = "portagpu.suites.search.worker"


class Fork(Protocol):
    """Runs a function of this package on as many forked ranks as the area has."""

    def __call__(
        self, place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        """How the ranks ended; the limits are those of :meth:`portagpu.runs.world.Ranks.run`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What to search: the area, for how long in seconds, and from which seed.

    ``start_s`` and ``wait_s`` are those of the area. With ``program`` that one is run ``REPEATS``
    times, and nothing else.
    """

    area: str
    seconds: float
    seed: int = 0
    start_s: float = 0.0
    wait_s: float = 0.0
    program: Program | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A program on which the device differs from the model, and how often it did."""

    area: str
    program: Program
    difference: str
    """A clause: what is different, or how the process ended."""
    seen: int
    runs: int
    starved: Starvation | None = None
    """How much its ranks waited for a CPU, where that says more of the machine than of the device:
    then it is not judged."""

    @property
    def sentence(self) -> str:
        """The difference, how often, the program, and how to repeat it; one line."""
        often = "" if self.seen == self.runs else f", {self.seen} of {self.runs} times"
        often += self.starved.remark if self.starved is not None else ""
        if not self.program:
            return f"{self.difference}{often}"
        text = shlex.quote(to_text(self.area, self.program))
        shown = program_line(self.program)
        return f"{self.difference}{often}, in: {shown} (portagpu conform --program {text})"


@dataclass(frozen=True, slots=True)
class Report:
    """How a search went; ``seconds`` is what it took.

    ``total`` is how many programs there are where the area lists them, ``aside`` what was not
    judged of those that ran, as (reason, how often), ``unjudged`` how many had nothing that was,
    and ``not_here`` what the machine lacks. ``unsure`` are differences that a busy machine may have
    caused.
    """

    programs: int = 0
    calls: int = 0
    failures: tuple[Failure, ...] = ()
    unsure: tuple[Failure, ...] = ()
    seconds: float = 0.0
    total: int = 0
    aside: tuple[tuple[str, int], ...] = ()
    unjudged: int = 0
    not_here: str = ""
    pairs: tuple[int, int] = (0, 0)
    """How many pairs of values of arguments met in one round, and of how many."""

    def with_failure(self, failure: Failure) -> Report:
        """The report with one failure more, judged or not."""
        if failure.starved is not None:
            return replace(self, unsure=(*self.unsure, failure))
        return replace(self, failures=(*self.failures, failure))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a program: the difference, empty if there is none, and how starved it was."""

    difference: str
    starved: Starvation | None

    @property
    def excuse(self) -> Starvation | None:
        """How much ranks waited for a CPU, where that was so long that they were slow."""
        return excuse(self.starved)


def search(request: SearchRequest, fork: Fork) -> Report:
    """Run programs for the request's time, or until one differs.

    Programs that died or hung do not end it before there are ``MAX_LOST`` of them. Where none ran,
    or nothing of those that ran was judged, ``not_here`` of the report says so.
    """
    started = time.monotonic()
    with Scratch("search") as folder:
        searcher = _Searcher(request, fork, folder / "program")
        report = searcher.replay() if request.program is not None else searcher.rounds()
    explained = report.failures or report.unsure or report.not_here
    if report.unjudged == report.programs and not explained:
        report = replace(report, not_here=_nothing_judged(request.area, report))
    return replace(report, seconds=time.monotonic() - started)


def round_seed(seed: int, area: str, number: int) -> int:
    """The seed of a round, from those of the search, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {area} {number}".encode()).digest()[:8])


@dataclass(slots=True)
class _Searcher:
    request: SearchRequest
    fork: Fork
    journal: Path
    not_here: str = ""
    """What this machine lacks for the program that was repeated last."""
    slow_start_s: float = 0.0
    repeats_unjudged: int = 0
    """How many of the last repetitions judged nothing, and below what was not judged and why."""
    repeats_aside: tuple[tuple[str, int], ...] = ()

    def rounds(self) -> Report:
        """All rounds."""
        area, found = self.request.area, Report()
        end = time.monotonic() + self.request.seconds
        number, start, lost = 0, 0, 0
        while (left := end - time.monotonic()) > 0 or not number:
            seconds = min(max(left, 0.0), LISTED_ROUND_S if found.total else ROUND_S)
            arguments = {
                "area": area,
                "number": round_seed(self.request.seed, area, number),
                "seconds": seconds,
                "min_programs": max(1, MIN_PROGRAMS - found.programs),
                "min_s": max(seconds, MIN_S),
                "shrink_s": SHRINK_S,
                "journal": str(self.journal),
                "seed": round_seed(self.request.seed, area, 0),
                "start": start,
                "max_found": max(1, MAX_LISTED - len(found.failures)),
            }
            number += 1
            outcome = self._run("search_rank", arguments, MAX_PASS * max(seconds, MIN_S) + SHRINK_S)
            if _hung(outcome) and not self._journal()[0] and not self.slow_start_s:
                self.slow_start_s = LIMITS.random_start_s
                number -= 1
                continue
            if isinstance(outcome, str) or not outcome.ok:
                lost += 1
                before = self._journal()[1]
                if before:
                    found, start = _with_listed(area, found, before), before["next"] + 1
                found = found.with_failure(self._lost(outcome))
                if lost == MAX_LOST:
                    return found
                continue
            value = outcome.values[0]
            if "not_here" in value:
                return replace(found, not_here=value["not_here"])
            if "total" in value:
                found, start = _with_listed(area, found, value), value["next"]
                if start >= value["total"] or len(found.failures) >= MAX_LISTED:
                    return found
                continue
            found = replace(
                found,
                programs=found.programs + value["programs"],
                calls=found.calls + value["calls"],
                aside=_both(found.aside, value["aside"]),
                unjudged=found.unjudged + value["unjudged"],
                pairs=max(found.pairs, tuple(value["pairs"])),
            )
            if value["smallest"]:
                failure = self._differing(value)
                lost += 1
                if failure is not None:
                    found = found.with_failure(failure)
                if (failure is not None and failure.starved is None) or lost == MAX_LOST:
                    return found
        return found

    def _run(
        self, function: str, arguments: Mapping[str, Any], seconds: float
    ) -> WorldOutcome | str:
        """How that function of the rounds went, or what became of the server of its ranks.

        Ranks say that they go on with each program, and while they load what the area needs: so one
        that hangs is noticed however long the others take.
        """
        # no program of an earlier round may be blamed
        self.journal.unlink(missing_ok=True)
        limit_s = self.slow_start_s + self.request.wait_s + LIMITS.random_program_s
        most_s = self.request.start_s + limit_s + seconds
        try:
            return self.fork(f"{_ROUNDS}:{function}", arguments, limit_s, most_s)
        except PortagpuError as error:
            return str(error)

    def replay(self) -> Report:
        """The request's own program, several times."""
        program = self.request.program or []
        again = self._repeat(program, REPEATS)
        if self.not_here:
            return Report(not_here=self.not_here)
        runs = len(again)
        report = Report(
            runs,
            runs * len(program),
            aside=self.repeats_aside,
            unjudged=self.repeats_unjudged,
        )
        failure = _repeated(self.request.area, program, again)
        return report if failure is None else report.with_failure(failure)

    def _differing(self, value: Mapping[str, Any]) -> Failure | None:
        """The failure of a round that returned; the smallest program if it fails again alone.

        None where most repetitions find a counter right.
        """
        area = self.request.area
        again: list[_Run] = []
        for text in dict.fromkeys((value["smallest"], value["first"])):
            program = from_text(text)[1]
            again = self._repeat(program, REPEATS)
            failure = _repeated(area, program, again)
            if failure is not None:
                every = failure.seen == failure.runs and failure.starved is None
                steady = every and text != value["smallest"]
                # what was broken for good in the round made every program fail there
                return self._smaller(failure, [program]) if steady else failure
        after = self._after_earlier(value["first"], value["earlier"])
        if after is not None:
            return after
        difference = Difference(value["difference"], Kind(value["kind"]))
        if difference.kind is Kind.COUNTER:
            return None
        first = _Run(difference, decode(Starvation, value["starved"], "starved"))
        program = from_text(value["first"])[1]
        return _failure(area, program, [first, *(again or [_Run("", None)])])

    def _after_earlier(self, text: str, earlier: list[str]) -> Failure | None:
        """The failure of a program after the last ones before it; None if it does not repeat."""
        if not earlier:
            return None
        parts = [from_text(each)[1] for each in (*reversed(earlier), text)]
        whole = [call for part in parts for call in part]
        again = [self._once(whole) for _ in range(LOST_REPEATS)]
        if not all(each.difference for each in again):
            return None
        failure = _failure(self.request.area, whole, again)
        return self._smaller(failure, parts)

    def _smaller(self, failure: Failure, parts: list[Program]) -> Failure:
        """The failure without the parts and calls that it does not need, as far as the time goes.

        None is left out where the program hangs: each try would take as long as that.
        """
        end = time.monotonic() + LOST_SHRINK_S
        calls = [[call] for part in parts for call in part]
        for part in (*(parts if len(parts) > 1 else ()), *reversed(calls)):
            if time.monotonic() >= end or kind_of(failure.difference) is Kind.HANG:
                break
            left_out = {id(call) for call in part}
            fewer = [call for call in failure.program if id(call) not in left_out]
            if not 0 < len(fewer) < len(failure.program):
                continue
            shorter = self._once(fewer).difference
            if shorter:
                failure = replace(failure, program=fewer, difference=shorter)
        return failure

    def _once(self, program: Program) -> _Run:
        """One run in a fresh process."""
        return next(iter(self._repeat(program, 1)), _Run("", None))

    def _lost(self, outcome: WorldOutcome | str) -> Failure:
        """The failure of a round whose process died or hung: the shortest program that does so."""
        area, ended = self.request.area, _how_it_ended(outcome)
        text, _, earlier = self._journal()
        if not text:
            difference = Difference(f"{ended.difference} before its first program", Kind.HANG)
            if not _hung(outcome):
                difference.kind = Kind.DEATH
            return _failure(area, [], [replace(ended, difference=difference)])
        program = from_text(text)[1]
        if _hung(outcome) and ended.excuse is not None:
            # what was only slow need not be repeated, and each time would take as long
            return _failure(area, program, [ended])
        again = [self._once(program) for _ in range(LOST_REPEATS)]
        failure = _failure(area, program, [ended, *again])
        seen = [each for each in again if each.difference]
        if not seen and not _hung(outcome):
            return self._after_earlier(text, earlier) or failure
        return self._smaller(failure, [program]) if len(seen) == len(again) else failure

    def _journal(self) -> tuple[str, dict[str, Any], list[str]]:
        """The program that ran last, the state of its round before, and the programs before it.

        Only a round of listed programs writes its state.
        """
        text = self.journal.read_text() if self.journal.exists() else ""
        program, state, *earlier = text.split("\n") if "\n" in text else (text, "")
        return program, json.loads(state or "{}"), earlier

    def _repeat(self, program: Program, times: int) -> list[_Run]:
        """Each repetition; where its process ended, the next one has another.

        Fewer than ``times`` where more than ``LOST_REPEATS`` processes ended.
        """
        found: list[_Run] = []
        self.repeats_unjudged, self.repeats_aside, lost = 0, (), 0
        while len(found) < times and lost <= LOST_REPEATS:
            arguments = {
                "area": self.request.area,
                "calls": program,
                "times": times - len(found),
                "journal": str(self.journal),
            }
            outcome = self._run("repeat_rank", arguments, LIMITS.random_program_s * times)
            if isinstance(outcome, str) or not outcome.ok:
                ended = _how_it_ended(outcome)
                found += _runs(self._journal()[1].get("differences", []), ended.starved)
                found.append(ended)
                lost += 1
                continue
            value = outcome.values[0]
            if "not_here" in value:
                self.not_here = value["not_here"]
                return []
            starved = decode(Starvation, value["starved"], "starved")
            found += _runs(value["differences"], starved)
            self.repeats_unjudged += value["unjudged"]
            self.repeats_aside = _both(self.repeats_aside, value["aside"])
        return found


def _runs(differences: Sequence[Sequence[str]], starved: Starvation | None) -> list[_Run]:
    """The runs of one process, from their differences as JSON."""
    return [_Run(Difference.from_json(each), starved) for each in differences]


def _repeated(area: str, program: Program, runs: list[_Run]) -> Failure | None:
    """The failure that these repetitions show, None where the program did not differ.

    A counter may be that of the whole process, which other things move: its median decides, so that
    it has to be wrong in more than half of the runs.
    """
    seen = [each for each in runs if each.difference]
    counters = all(kind_of(each.difference) is Kind.COUNTER for each in seen)
    if not seen or (counters and 2 * len(seen) <= len(runs)):
        return None
    return _failure(area, program, runs)


def _failure(area: str, program: Program, runs: list[_Run]) -> Failure:
    """The failure that runs of a program show, some of which differ.

    A wrong value is judged on every machine. What takes too long is not, if it did so on a busy one
    alone; and what is not there at every run is not, if a run of them was on a busy one.
    """
    seen = [each for each in runs if each.difference]
    kinds = [kind_of(each.difference) for each in seen]
    shown = seen[kinds.index(Kind.VALUE)] if Kind.VALUE in kinds else seen[0]
    excuses = [each.excuse for each in runs if each.excuse is not None]
    starved = excuses[0] if excuses else None
    if Kind.VALUE in kinds:
        starved = None
    elif len(seen) == len(runs):
        slow = all(
            kind is Kind.HANG and each.excuse is not None
            for kind, each in zip(kinds, seen, strict=True)
        )
        starved = starved if slow else None
    return Failure(area, program, shown.difference, len(seen), len(runs), starved)


def _with_listed(area: str, found: Report, value: Mapping[str, Any]) -> Report:
    """The report with a round of listed programs."""
    failures = [
        Failure(area, from_text(text)[1], Difference.from_json(difference), seen, runs)
        for text, difference, seen, runs in value["found"]
    ]
    return replace(
        found,
        programs=found.programs + value["programs"],
        calls=found.calls + value["calls"],
        failures=(*found.failures, *failures),
        total=value["total"],
        aside=_both(found.aside, value["aside"]),
        unjudged=found.unjudged + value["unjudged"],
    )


def _nothing_judged(area: str, report: Report) -> str:
    """Why a search without a failure says nothing."""
    if not report.programs:
        return f"no program of {area} ran"
    reasons = "".join(f"; {reason}: {count}" for reason, count in report.aside)
    return f"nothing of {report.programs} programs of {area} was judged{reasons}"


def _both(
    before: tuple[tuple[str, int], ...], now: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """How often each reason was given, in an earlier round and in this one."""
    return tuple(sorted((Counter(dict(before)) + Counter(now)).items()))


def _hung(outcome: WorldOutcome | str) -> bool:
    blamed = None if isinstance(outcome, str) else outcome.first_failure
    return blamed is not None and blamed.state is RankState.HUNG


def _how_it_ended(outcome: WorldOutcome | str) -> _Run:
    """The run that ended a process, or that did not end."""
    if isinstance(outcome, str):
        return _Run(Difference(f"its process ended: {outcome}", Kind.DEATH), None)
    blamed = outcome.first_failure
    starved = None if blamed is None else blamed.starved
    if blamed is not None and blamed.state is RankState.HUNG:
        where = f" and stood in {blamed.where}" if blamed.where else ""
        text = f"it did not end within {LIMITS.random_program_s:g} s{where}"
        return _Run(Difference(text, Kind.HANG), starved)
    return _Run(Difference(f"its process ended: {outcome.sentence}", Kind.DEATH), starved)
