"""The search: its programs repeat, failures shrink, and a process that ends costs one program."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from hypothesis import given, seed, settings

import portagpu
from portagpu.base.patience import LIMITS, Starvation
from portagpu.runs.world import RankOutcome, Ranks, RankState, WorldOutcome
from portagpu.suites.conformance import ConformOptions, conform
from portagpu.suites.search import (
    Report,
    SearchRequest,
    engine,
    from_text,
    program_line,
    search,
    to_text,
)
from portagpu.suites.search.area import ProgramError, load_area
from portagpu.suites.search.worker import SETTINGS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.suites.search.area import Program

RANKS = ROOT / "tests/support/search_ranks.py"


QUIET = Starvation(wall_s=20.0, waited_s=0.4, load=1.5, cpus=2)
BUSY = Starvation(wall_s=40.0, waited_s=24.4, load=31.2, cpus=2)


def undisturbed(outcome: WorldOutcome) -> WorldOutcome:
    """The outcome as it is on a quiet machine: what else runs here is not part of a test."""

    def quiet(each: RankOutcome) -> RankOutcome:
        value, starved = each.value, each.starved and QUIET
        if isinstance(value, dict) and "starved" in value:
            value = {**value, "starved": asdict(QUIET)}
        return replace(each, value=value, starved=starved)

    return replace(outcome, ranks=tuple(map(quiet, outcome.ranks)))


def run(ranks: Ranks, device: str, monkeypatch: pytest.MonkeyPatch, **request: Any) -> Report:
    """The report of a search of ``search_ranks``, in which nothing hangs for long."""
    # whatever does not hang is given the time that a busy machine needs to begin
    short = {"HANGS": 1.0, "LOADS_FOR_LONG": 2.0, "WRONG_AFTER_A_WHILE": 4.0}
    limit_s = short.get(device, 20.0)
    monkeypatch.setattr(engine, "LIMITS", replace(LIMITS, random_program_s=limit_s))
    # they end by themselves, as a search does that has found something
    monkeypatch.setattr(engine, "SHRINK_S", 600.0)
    seconds = 0.3 if device.startswith(("RIGHT", "SLOW", "LOADS", "UNJUDGED")) else 600.0

    def fork(
        place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        function = place.rpartition(":")[2]
        outcome = ranks.run(
            f"{RANKS}:{function}",
            arguments={**arguments, "device": device},
            backend="cpu",
            group=False,
            timeout_s=timeout_s,
            most_s=most_s,
        )
        return undisturbed(outcome)

    return search(SearchRequest(**{"area": "adding", "seconds": seconds, **request}), fork)


def test_a_right_device_has_programs_and_no_failure(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "RIGHT", monkeypatch)
    assert report.programs > 0
    assert report.calls >= report.programs
    assert report.failures == ()


def test_a_short_search_runs_a_program_however_long_drawing_takes_to_load(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "SLOW_TO_LOAD", monkeypatch, seconds=0.01)
    assert report.programs > 0, "a search without a program passes"


class SlowStarts:
    """A fork whose first processes take this many seconds before their first program."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = [*seconds]
        self.limits: list[float] = []

    def __call__(
        self, place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        self.limits.append(timeout_s)
        if self.seconds and self.seconds.pop(0) > timeout_s:
            return WorldOutcome(place, (RankOutcome(0, RankState.HUNG, where="load"),), timeout_s)
        value = {"total": 1, "next": 1, "programs": 1, "calls": 1, "found": [], "aside": {}}
        value |= {"unjudged": 0}
        return WorldOutcome(place, (RankOutcome(0, RankState.DONE, value),), 0.1)


def test_a_start_that_is_slow_once_is_not_a_fault_of_the_device() -> None:
    fork = SlowStarts(30.0, 30.0)
    report = search(SearchRequest(area="adding", seconds=1.0), fork)
    assert (report.programs, report.failures) == (1, ())
    assert fork.limits[1] > 30.0 > fork.limits[0]


def test_a_device_on_which_no_program_begins_fails() -> None:
    report = search(SearchRequest(area="adding", seconds=1.0), SlowStarts(*[1e9] * 9))
    assert (report.programs, report.not_here) == (0, "")
    assert len(report.failures) == engine.MAX_LOST
    assert "before its first program" in report.failures[0].sentence


def test_a_short_search_runs_five_programs_of_a_slow_device(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the clock of the machine is not a part of it: five take as long as they take
    monkeypatch.setattr(engine, "MIN_S", 60.0)
    assert run(search_ranks, "SLOW", monkeypatch, seconds=0.01).programs == 5


def test_five_programs_that_take_too_long_are_not_waited_for(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MIN_S", 0.01)
    # the first is not in the time, and the second begins in it
    assert run(search_ranks, "SLOW", monkeypatch, seconds=0.01).programs == 2


def test_a_search_without_a_program_judges_nothing(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LISTED_NONE", monkeypatch)
    assert (report.programs, report.not_here) == (0, "no program of adding ran")


def test_a_wrong_device_is_shown_by_the_smallest_program(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failure,) = run(search_ranks, "WRONG", monkeypatch).failures
    assert failure.program == [("add", {"n": 41})]
    assert (failure.seen, failure.runs) == (10, 10)
    assert failure.sentence == (
        "the sum is another one, in: add(n=41) "
        """(portagpu conform --program 'adding [["add",{"n":41}]]')"""
    )


def test_a_flaky_device_fails_this_many_times_of_ten(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failure,) = run(search_ranks, "FLAKY", monkeypatch).failures
    assert failure.difference == "the sum is another one"
    assert 0 < failure.seen < failure.runs or failure.runs == 11
    assert f", {failure.seen} of {failure.runs} times, in: " in failure.sentence


def test_an_error_is_a_difference(search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    (failure,) = run(search_ranks, "RAISES", monkeypatch).failures
    assert failure.difference == "it raised RuntimeError: the device was lost"
    assert len(failure.program) == 1


def test_programs_that_end_their_process_are_named_and_the_search_goes_on(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "DIES", monkeypatch)
    assert len(report.failures) == engine.MAX_LOST
    for failure in report.failures:
        assert "SIGSEGV" in failure.difference
        assert [name for name, _ in failure.program] == ["add"]
        assert failure.seen == failure.runs


@pytest.mark.usefixtures("quiet_machine")
def test_a_program_that_hangs_is_named(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_LOST", 1)
    (failure,) = run(search_ranks, "HANGS", monkeypatch).failures
    assert failure.difference.startswith("it did not end within 1 s and stood in _hangs")
    assert any(given.get("n", 0) > 40 for _, given in failure.program)


def test_what_loads_for_long_does_not_hang(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LOADS_FOR_LONG", monkeypatch, start_s=60.0)
    assert report.programs > 0
    assert report.failures == ()


def test_repetitions_of_a_slow_program_do_not_share_the_time_of_one(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [("add", {"n": 77})]
    (failure,) = run(search_ranks, "WRONG_AFTER_A_WHILE", monkeypatch, program=program).failures
    assert (failure.difference, failure.seen, failure.runs) == ("the sum is another one", 10, 10)


def test_a_death_now_and_then_is_reported_as_such(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [("add", {"n": 77})]
    (failure,) = run(search_ranks, "DIES_AT_THE_THIRD", monkeypatch, program=program).failures
    assert "SIGSEGV" in failure.difference
    assert (failure.seen, failure.runs) == (3, 9)


@pytest.mark.parametrize("program", [None, [("add", {"n": 77})]])
def test_programs_of_which_nothing_is_judged_are_not_a_pass(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch, program: Program | None
) -> None:
    report = run(search_ranks, "UNJUDGED", monkeypatch, program=program)
    runs = report.programs
    assert runs > 0
    reported = f"nothing of {runs} programs of adding was judged; no sample: {runs}"
    assert report.not_here == reported


PROGRAM = 'adding [["add",{"n":77}]]'
WORDS = "on a busy machine (load 31.2 on 2 CPUs; waited 61 % of the last 40 s for a CPU)"


class Scripted:
    """A fork whose processes do what a script says, and how starved they are in it.

    A round ends by "hang" or "death", or differs in a "value" or "counter", or is "right". Of the
    repetitions each number is how often the same is seen, in one process where it can be.
    """

    def __init__(self, rounds: list[tuple[str, Starvation]], again: tuple[int, Starvation]) -> None:
        self.rounds = rounds
        self.seen, self.starved_again = again
        self.what = ""
        self.calls: list[str] = []

    def __call__(
        self, place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        function = place.rpartition(":")[2]
        self.calls.append(function)
        Path(arguments["journal"]).write_text(f"{PROGRAM}\n{{}}")
        if function == "search_rank":
            what, starved = self.rounds.pop(0) if self.rounds else ("right", QUIET)
            self.what = what if what != "right" else self.what
            return self.round(place, what, starved)
        lost = self.what in ("hang", "death")
        if lost and self.seen:
            self.seen -= 1
            return self.end(place, self.what, self.starved_again)
        seen, times = 0 if lost else self.seen, arguments["times"]
        differences = [["the sum is off", self.what]] * seen + [["", "value"]] * (times - seen)
        value = {"differences": differences, "starved": asdict(self.starved_again)}
        value |= {"aside": {}, "unjudged": 0}
        return WorldOutcome(place, (RankOutcome(0, RankState.DONE, value),), 0.1)

    def round(self, place: str, what: str, starved: Starvation) -> WorldOutcome:
        if what in ("hang", "death"):
            return self.end(place, what, starved)
        wrong = PROGRAM if what != "right" else ""
        value = {
            "programs": 5,
            "calls": 5,
            "first": wrong,
            "smallest": wrong,
            "earlier": [],
            "difference": "the sum is off",
            "kind": what if wrong else "value",
            "aside": {},
            "unjudged": 0,
            "pairs": [0, 0],
            "starved": asdict(starved),
        }
        return WorldOutcome(place, (RankOutcome(0, RankState.DONE, value),), 0.1)

    def end(self, place: str, what: str, starved: Starvation) -> WorldOutcome:
        state = RankState.HUNG if what == "hang" else RankState.DIED
        error = "" if what == "hang" else "died of SIGKILL"
        ended = RankOutcome(0, state, error=error, starved=starved)
        return WorldOutcome(place, (ended,), 0.1, culprit=0)


AT_ONCE = Starvation(wall_s=0.02, waited_s=0.01, load=2.7, cpus=2)
"""What was measured of ranks that die at their third program, next to one other process."""
JUDGED = [
    # what, in the round, how often again (of 2 for what ends a process, else of 10), judged, words
    ("value", QUIET, 10, QUIET, True, "the sum is off, in:"),
    ("value", BUSY, 10, BUSY, True, "the sum is off, in:"),
    ("value", BUSY, 0, BUSY, True, "the sum is off, 1 of 11 times, in:"),
    ("value", BUSY, 3, BUSY, True, "the sum is off, 3 of 10 times, in:"),
    ("counter", QUIET, 6, QUIET, True, "the sum is off, 6 of 10 times, in:"),
    ("counter", BUSY, 6, QUIET, True, "the sum is off, 6 of 10 times, in:"),
    ("counter", BUSY, 6, BUSY, False, f"the sum is off, 6 of 10 times {WORDS}, in:"),
    ("counter", BUSY, 10, BUSY, True, "the sum is off, in:"),
    ("death", QUIET, 0, QUIET, True, "died of SIGKILL, 1 of 3 times, in:"),
    ("death", BUSY, 0, QUIET, False, f"died of SIGKILL, 1 of 3 times {WORDS}, in:"),
    ("death", QUIET, 1, BUSY, False, f"died of SIGKILL, 2 of 3 times {WORDS}, in:"),
    ("death", AT_ONCE, 0, AT_ONCE, True, "died of SIGKILL, 1 of 3 times, in:"),
    ("death", BUSY, 9, BUSY, True, "died of SIGKILL, in:"),
    ("hang", QUIET, 0, QUIET, True, "it did not end within 10 s, 1 of 3 times, in:"),
    ("hang", QUIET, 2, QUIET, True, "it did not end within 10 s, in:"),
    ("hang", QUIET, 2, BUSY, True, "it did not end within 10 s, in:"),
    ("hang", QUIET, 1, BUSY, False, f"it did not end within 10 s, 2 of 3 times {WORDS}, in:"),
    ("hang", BUSY, 2, BUSY, False, f"it did not end within 10 s {WORDS}, in:"),
]


@pytest.mark.parametrize(("what", "first", "seen", "again", "judged", "words"), JUDGED)
def test_a_busy_machine_excuses_all_but_values_and_what_always_fails(
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    first: Starvation,
    seen: int,
    again: Starvation,
    judged: bool,
    words: str,
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(engine.time, "monotonic", lambda: float(next(clock)))
    fork = Scripted([("right", QUIET), (what, first)], (seen, again))
    report = search(SearchRequest(area="adding", seconds=30.0), fork)
    reported, empty = report.failures, report.unsure
    if not judged:
        reported, empty = empty, reported
    assert len(reported) == 1, report
    assert empty == ()
    assert words in reported[0].sentence
    assert report.programs >= 5, "the round before counts"
    assert report.not_here == ""


@pytest.mark.parametrize("seen", [0, 1, 5])
@pytest.mark.parametrize("starved", [QUIET, BUSY])
def test_a_counter_that_most_repetitions_find_right_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, seen: int, starved: Starvation
) -> None:
    """The resident memory of a process moves by more than tensors: its median is judged."""
    clock = iter(range(10**6))
    monkeypatch.setattr(engine.time, "monotonic", lambda: float(next(clock)))
    fork = Scripted([("counter", starved), ("right", QUIET), ("value", QUIET)], (seen, starved))
    report = search(SearchRequest(area="adding", seconds=100.0), fork)
    assert [each.seen for each in report.failures] == [max(seen, 1)]
    assert (report.failures[0].runs, report.unsure) == (10 if seen else 11, ())
    assert fork.calls.count("search_rank") == 3, "the search did not go on"


def test_what_only_was_slow_is_not_repeated_and_the_search_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(engine.time, "monotonic", lambda: float(next(clock)))
    fork = Scripted([("hang", BUSY), ("right", BUSY), ("value", BUSY)], (10, BUSY))
    report = search(SearchRequest(area="adding", seconds=100.0), fork)
    assert [each.difference for each in report.failures] == ["the sum is off"]
    assert [each.starved for each in report.unsure] == [BUSY]
    assert fork.calls[:3] == ["search_rank"] * 3


def test_a_machine_on_which_no_program_begins_in_time_is_not_judged() -> None:
    def fork(
        place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        return WorldOutcome(place, (RankOutcome(0, RankState.HUNG, starved=BUSY),), 0.1)

    report = search(SearchRequest(area="adding", seconds=1.0), fork)
    assert (report.failures, report.not_here) == ((), "")
    assert len(report.unsure) == engine.MAX_LOST
    assert report.unsure[0].sentence == (
        f"it did not end within 10 s before its first program {WORDS}"
    )


@pytest.mark.parametrize("again", [20, 0])
def test_a_repeated_program_that_a_busy_machine_may_have_changed_is_not_judged(again: int) -> None:
    fork = Scripted([], (again * 3 // 10, BUSY))
    fork.what = "counter"
    program = [("add", {"n": 77})]
    report = search(SearchRequest(area="adding", seconds=1.0, program=program), fork)
    assert report.failures == ()
    assert len(report.unsure) == bool(again)


def test_a_failure_without_a_program_gives_no_command() -> None:
    failure = engine.Failure("adding", [], "its process ended before its first program", 1, 1)
    assert failure.sentence == "its process ended before its first program"


def test_one_program_is_repeated_alone(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [("add", {"n": 7})]
    report = run(search_ranks, "WRONG", monkeypatch, program=program)
    assert (report.programs, report.failures) == (10, ())
    (failure,) = run(search_ranks, "WRONG", monkeypatch, program=[("add", {"n": 77})]).failures
    assert failure.program == [("add", {"n": 77})]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            """generators [["sed", {}]]""",
            "generators has no call 'sed': did you mean 'seed'?",
        ),
        (
            """generators [["xyzzy", {}]]""",
            "generators has no call 'xyzzy': the program may be of another version",
        ),
        (
            """generators [["seed", {"generator": "g0", "valeu": 1, "via": "own"}]]""",
            "the call 'seed' of generators has no argument 'valeu': did you mean 'value'?",
        ),
        (
            """operators-nn [["samples", {"op": "relu", "dtype": "float32"}]]""",
            "the call 'samples' of operators-nn needs the argument 'variant'",
        ),
        (
            """collectives-2 [["barrier", {"group": "default"}]]""",
            "the call 'barrier' of collectives-2 needs the argument 'late'",
        ),
    ],
)
def test_a_program_with_an_unknown_call_is_wrong_usage(text: str, reported: str) -> None:
    with pytest.raises(ProgramError) as raised:
        conform(ConformOptions(backend="cpu", program=text))
    assert str(raised.value) == reported


def test_listed_programs_run_each_once(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LISTED", monkeypatch)
    assert (report.programs, report.total, report.failures) == (60, 60, ())
    assert report.aside == (("n ends in 0", 6),)


def test_listed_programs_go_on_after_a_difference(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LISTED_WRONG", monkeypatch)
    assert report.programs == 60
    # by hand: 41 to 59 without 50
    numbers = sorted(failure.program[0][1]["n"] for failure in report.failures)
    assert numbers == [n for n in range(41, 60) if n != 50]
    assert {(failure.seen, failure.runs) for failure in report.failures} == {(10, 10)}


def test_no_more_listed_programs_than_can_be_read_are_reported(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_LISTED", 3)
    report = run(search_ranks, "LISTED_WRONG", monkeypatch)
    assert len(report.failures) == 3
    assert report.programs < 60


def test_listed_programs_go_on_after_one_that_ends_its_process(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LISTED_DIES", monkeypatch)
    # those that ended their process returned nothing
    assert len({str(failure.program) for failure in report.failures}) == engine.MAX_LOST
    assert report.total == 60


def test_listed_programs_come_in_the_order_of_the_seed(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_LISTED", 1)
    firsts = [
        run(search_ranks, "LISTED_WRONG", monkeypatch, seed=seed).failures[0].program[0][1]["n"]
        for seed in (1, 1, 2, 3)
    ]
    assert firsts[0] == firsts[1]
    assert len(set(firsts)) > 1


def test_what_a_machine_lacks_is_reported(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(search_ranks, "LISTED_MISSING", monkeypatch)
    assert report.not_here == "install adding"
    again = run(search_ranks, "LISTED_MISSING", monkeypatch, program=[("add", {"n": 3})])
    assert (again.not_here, again.failures) == ("install adding", ())


def test_seeds_of_rounds_are_the_same_everywhere() -> None:
    # by hand: int.from_bytes(sha256(b"0 adding 0").digest()[:8])
    assert engine.round_seed(0, "adding", 0) == 3492942986069235470
    assert len({engine.round_seed(seed, "adding", n) for seed in range(9) for n in range(9)}) == 81


@pytest.mark.parametrize("name", ["generators", "numbers", "collectives-3"])
def test_a_seed_draws_the_same_programs(name: str) -> None:
    area, gpu = load_area(name), portagpu.backend("cpu")

    def drawn(number: int) -> list[Program]:
        found: list[Program] = []

        @settings(SETTINGS, max_examples=20)
        @seed(number)
        @given(area.programs(gpu))
        def each(program: Program) -> None:
            found.append(program)

        each()
        return found

    first = drawn(3)
    assert first == drawn(3), "the seed 3 drew other programs the second time"
    assert first != drawn(4), "the seeds 3 and 4 drew the same programs"


def test_a_program_is_one_line_of_text() -> None:
    program = [("add", {"n": 3, "op": "SUM"}), ("rest", {})]
    text = to_text("adding", program)
    assert text == 'adding [["add",{"n":3,"op":"SUM"}],["rest",{}]]'
    assert from_text(text) == ("adding", program)
    assert program_line(program) == "add(n=3, op='SUM'); rest()"


@pytest.mark.parametrize(
    "text", ["", "adding", "adding []", "adding {", "adding [1]", 'adding [["add",3]]', "adding 7"]
)
def test_what_is_not_a_program_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match=r"not a program: .*; copy the text after --program"):
        from_text(text)


def test_an_unknown_area_is_refused() -> None:
    with pytest.raises(ProgramError, match="did you mean 'generators'"):
        load_area("generator")
