"""What a forked process does of a search: it draws programs, runs them and shrinks failures."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import HypothesisException

from portagpu.base.patience import charged_s
from portagpu.runs.world.rank import load_file, tell_alive
from portagpu.suites.search.area import (
    MAX_PASS,
    NotSearchable,
    kind_of,
    load_area,
    raised,
    to_json,
    to_text,
    watch_world,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Area, Program, Sweep

SETTINGS: Final = settings(
    max_examples=10**9,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=Verbosity.quiet,
)


REPEAT_S: Final = 1.0
"""How long a listed program that differed is repeated: there may be many, and they are large."""
LISTED_REPEATS: Final = 10
"""How often at most, the first time included."""


RECENT: Final = 8
"""How many earlier programs the journal keeps: one may have broken what a later one uses."""


_ALIVE_S: Final = 0.5


class _TimeIsUp(BaseException):
    """Ends a round from inside; hypothesis re-raises what is not an Exception."""


class _Differs(Exception):
    """Raised for hypothesis: a program failed."""


def _recent() -> deque[str]:
    return deque(maxlen=RECENT)


def journal_text(program: str, state: dict[str, Any], earlier: Iterable[str]) -> str:
    """What is in the journal while a program runs, one line each.

    The program, the state of the round before it as JSON, and the programs before it, the last
    one first.
    """
    return "\n".join((program, json.dumps(state), *earlier))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much a round may take.

    Seconds in which it waits for a CPU do not count: a busy machine runs as many programs. The time
    begins after the first program: what it and hypothesis load takes longer than a short
    search. So at least one program runs.
    """

    seconds: float
    """For programs, until one fails."""
    shrink_s: float
    """For shrinking the program that failed."""
    max_programs: float = math.inf
    """The round ends after this many programs without a failure."""
    min_programs: int = 1
    """This many programs run even if ``seconds`` are over, unless that takes longer than
    ``min_s``."""
    min_s: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What a round found."""

    programs: int = 0
    calls: int = 0
    first: str = ""
    """The first program that failed, as text."""
    found_s: float = 0.0
    """Seconds until then."""
    found_at: int = 0
    """How many programs had run then."""
    smallest: str = ""
    """The smallest program that failed, as text."""
    difference: str = ""
    """What was different in it."""
    earlier: list[str] = field(default_factory=list)
    """The programs before the first that failed, the last ones first."""
    pairs: tuple[int, int] = (0, 0)
    """How many pairs of values of arguments met, and of how many; (0, 0) without a sweep."""

    def to_json(self) -> dict[str, Any]:
        """Every field, and the kind of the difference."""
        fields = {each: getattr(self, each) for each in self.__slots__}
        return {**fields, "kind": str(kind_of(self.difference))}


@dataclass(slots=True)
class Round:
    """The programs of one seed, until the time is over or one fails and is as small as it gets."""

    area: Area
    rank: Rank
    journal: int
    """The file in which the program that runs now is: it is read if the process dies."""
    budget: Budget
    outcome: Outcome = field(default_factory=Outcome)
    _recent: deque[str] = field(default_factory=_recent)
    _started: float = 0.0
    _deadline: float = math.inf

    def run(self, number: int) -> Outcome:
        """Run programs of the seed ``number``, and shrink the first that fails."""
        programs = self.area.programs(self.rank.gpu)
        sweep = self.area.sweep(self.rank.gpu, random.Random(number))  # noqa: S311 - no secret

        @SETTINGS
        @seed(number)
        @given(programs)
        def each(program: Program) -> None:
            self._run_one(program)

        # HypothesisException: a program that fails now and then; what was seen is kept here
        with contextlib.suppress(_TimeIsUp, _Differs, HypothesisException):
            if sweep is not None:
                self._sweep(sweep)
            each()
        if sweep is not None:
            self.outcome.pairs = sweep.covered, sweep.total
        return self.outcome

    def _sweep(self, sweep: Sweep) -> None:
        for program in sweep.programs():
            try:
                self._run_one(program)
            except _Differs:
                self._shrink(program, sweep)
                raise

    def _shrink(self, program: Program, sweep: Sweep) -> None:
        """Look for one call that differs alone, with the first values that still do."""
        alone = next((each for each in program if self._keeps([each])), None)
        if alone is None:
            for each in reversed(program):
                fewer = [other for other in program if other is not each]
                if fewer and self._keeps(fewer):
                    program = fewer
            return
        name, given = alone
        lists = next(
            (each.rows.lists for each in sweep.calls if each.name == name and each.fits(given)), {}
        )
        for key, values in lists.items():
            before = values[: next((k for k, v in enumerate(values) if v == given[key]), 0)]
            tried = [given | {key: each} for each in before]
            given = next((each for each in tried if self._keeps([(name, each)])), given)

    def _keeps(self, program: Program) -> bool:
        """Whether it differs too; then it is the smallest so far."""
        try:
            self._run_one(program)
        except _Differs as differs:
            self.outcome.smallest = to_text(self.area.name, program)
            (self.outcome.difference,) = differs.args
            return True
        return False

    def _run_one(self, program: Program) -> None:
        outcome = self.outcome
        over = not outcome.first and outcome.programs >= self.budget.max_programs
        if over or (outcome.programs and charged_s() >= self._end()):
            raise _TimeIsUp
        text = to_text(self.area.name, program)
        journal = journal_text(text, {}, self._recent)
        found = run_program(self.area, self.rank, program, journal, self.journal)
        if not outcome.programs:
            self._started = charged_s()
            self._deadline = self._started + self.budget.seconds
        outcome.programs += 1
        outcome.calls += len(program)
        if not found:
            self._recent.appendleft(text)
            return
        if not outcome.first:
            outcome.first = text
            outcome.earlier = list(self._recent)
            outcome.found_s = charged_s() - self._started
            outcome.found_at = outcome.programs
            self._deadline = charged_s() + self.budget.shrink_s
        smallest = outcome.smallest
        if not smallest or (len(text), text) <= (len(smallest), smallest):
            outcome.smallest, outcome.difference = text, found
        raise _Differs(found)

    def _end(self) -> float:
        if self.outcome.first or self.outcome.programs >= self.budget.min_programs:
            return self._deadline
        return max(self._deadline, self._started + self.budget.min_s)


@dataclass(slots=True)
class Listing:
    """The listed programs of an area, shuffled by the search's seed, until the time is over.

    A program that differs is repeated at once, and the next one follows: none is smaller.
    """

    area: Area
    rank: Rank
    journal: int
    next: int
    """The index of the first program that did not run."""
    programs: int = 0
    calls: int = 0
    found: list[tuple[str, list[str], int, int]] = field(default_factory=list)
    """Of each that differed: the program as text, the difference, how often, of how many runs."""
    found_s: float = 0.0
    """Seconds until the first that differed."""
    found_at: int = 0
    """How many programs had run then."""
    _recent: deque[str] = field(default_factory=_recent)

    def run(self, listed: list[Program], seconds: float, max_found: int) -> None:
        """Run programs for the seconds, or until ``max_found`` of them differ.

        One runs at least, and those of the area's first pass for up to ``MAX_PASS`` times as long.
        """
        started, least = charged_s(), self.area.first_pass(listed)
        for program in listed[self.next :]:
            spent = charged_s() - started
            over = spent >= seconds and (self.next >= least or spent >= MAX_PASS * seconds)
            if self.programs and (over or len(self.found) >= max_found):
                return
            text = to_text(self.area.name, program)
            # a process that dies leaves what it found, and where to go on
            journal = journal_text(text, self.to_json(len(listed)), self._recent)
            difference = run_program(self.area, self.rank, program, journal, self.journal)
            self._recent.appendleft(text)
            self.next += 1
            self.programs += 1
            self.calls += len(program)
            if difference:
                if not self.found:
                    self.found_s, self.found_at = charged_s() - started, self.programs
                self.found.append((text, to_json(difference), *self._seen(program, journal)))

    def to_json(self, total: int) -> dict[str, Any]:
        """The round as JSON, of ``total`` programs in the list."""
        return {
            "total": total,
            "next": self.next,
            "programs": self.programs,
            "calls": self.calls,
            "found": self.found,
            "difference": self.found[0][1][0] if self.found else "",
            "found_s": self.found_s,
            "found_at": self.found_at,
            "aside": Counter(self.area.aside()),
            "unjudged": self.area.unjudged(),
        }

    def _seen(self, program: Program, journal: str) -> tuple[int, int]:
        """How often the program differs, and of how many runs, the first one included."""
        seen, runs, deadline = 1, 1, charged_s() + REPEAT_S
        while runs < LISTED_REPEATS and charged_s() < deadline:
            seen += bool(run_program(self.area, self.rank, program, journal, self.journal))
            runs += 1
        return seen, runs


def run_program(area: Area, rank: Rank, program: Program, text: str, journal: int) -> str:
    """The difference of one program; ``text`` is in the journal while it runs.

    An error that the area lets through is a difference too.
    """
    os.ftruncate(journal, 0)
    os.pwrite(journal, text.encode(), 0)
    tell_alive()
    try:
        return area.difference(rank, program)
    except NotSearchable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a device raises is what it did
        return raised(error)


def load_areas(names: list[str], files: Sequence[str] = ()) -> None:
    """Import what the programs of those areas need, where this machine has it, and files of cases.

    The first gradient of a process imports torch's symbolic shapes, with sympy, in seconds: ranks
    that are forked from here have both.
    """
    for file in files:
        # its cases report what is wrong with it
        with contextlib.suppress(Exception):
            load_file(file)
    if names:
        with contextlib.suppress(ImportError):
            import_module("torch.fx.experimental.symbolic_shapes")
    for name in names:
        with contextlib.suppress(NotSearchable):
            load_area(name).load()


def search_rank(
    rank: Rank,
    area: str,
    number: int,
    seconds: float,
    shrink_s: float,
    journal: str,
    *,
    seed: int = 0,
    start: int = 0,
    max_found: int = 1,
    min_programs: int = 1,
    min_s: float = 0.0,
) -> dict[str, Any] | None:
    """One round on rank 0, as JSON; the other ranks follow it. ``min_programs`` are drawn ones.

    Listed programs run in the order of ``seed`` from index ``start`` on, until ``max_found`` of
    them differ.
    """
    found = load_area(area)
    if rank.rank:
        found.follow(rank)
        return None
    file = os.open(journal, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with _alive_for(found.start_s):
            found.load()
        listed = found.listed(rank.gpu)
    except NotSearchable as error:
        return {"not_here": str(error)}
    if listed is not None:
        listed = found.ordered(listed, seed)
        listing = Listing(found, rank, file, start)
        # how long a list takes to make is not part of the time: torch's database takes seconds
        listing.run(listed, seconds, max_found)
        found.end(rank)
        return listing.to_json(len(listed))
    budget = Budget(seconds=seconds, shrink_s=shrink_s, min_programs=min_programs, min_s=min_s)
    watch = watch_world()
    outcome = Round(found, rank, file, budget).run(number)
    found.end(rank)
    return {
        **outcome.to_json(),
        "starved": asdict(watch.starved),
        "aside": Counter(found.aside()),
        "unjudged": found.unjudged(),
    }


def repeat_rank(
    rank: Rank, area: str, calls: list[list[Any]], times: int, journal: str
) -> dict[str, Any] | None:
    """The difference of one program at each of ``times`` repetitions; the other ranks follow.

    And what they did not judge, or what this machine lacks for it. The journal has the
    differences of the earlier repetitions while one runs.
    """
    found = load_area(area)
    if rank.rank:
        found.follow(rank)
        return None
    program = [(name, arguments) for name, arguments in calls]
    file = os.open(journal, os.O_RDWR | os.O_CREAT, 0o600)
    text = to_text(area, program)
    differences: list[list[str]] = []
    watch = watch_world()
    try:
        with _alive_for(found.start_s):
            found.load()
        for _ in range(times):
            journaled = journal_text(text, {"differences": differences}, ())
            differences.append(to_json(run_program(found, rank, program, journaled, file)))
    except NotSearchable as error:
        return {"not_here": str(error)}
    finally:
        found.end(rank)
    return {
        "differences": differences,
        "starved": asdict(watch.starved),
        "aside": Counter(found.aside()),
        "unjudged": found.unjudged(),
    }


@contextlib.contextmanager
def _alive_for(seconds: float) -> Iterator[None]:
    """Report for at most this long that the rank goes on: imports may take that long."""
    over = threading.Event()

    def report() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not over.wait(_ALIVE_S):
            tell_alive()

    thread = threading.Thread(target=report, name="portagpu-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
