"""The search: its programs repeat, failures shrink, and a process that ends costs one program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from hypothesis import given, seed, settings

import portagpu
from portagpu.search import Report, SearchRequest, engine, from_text, program_line, search, to_text
from portagpu.search.area import AREAS, load_area
from portagpu.search.programs import ProgramError, check_calls
from portagpu.search.rounds import SETTINGS
from portagpu.suite import ConformOptions, conform
from portagpu.world import RankOutcome, Ranks, RankState, WorldOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from portagpu.search.programs import Program

RANKS = Path(__file__).with_name("search_ranks.py")


@pytest.fixture(scope="module")
def server() -> Iterator[Ranks]:
    with Ranks() as found:
        # a rank that imports hypothesis itself may take longer than the limits here
        found.prepare("portagpu.search.rounds:load_areas", backend="cpu", names=[])
        yield found


def run(server: Ranks, device: str, monkeypatch: pytest.MonkeyPatch, **request: Any) -> Report:
    """The report of a search of ``tests/search_ranks.py``, in which nothing hangs for long."""
    # whatever does not hang is given the time that a busy machine needs to begin
    short = {"HANGS": 1.0, "LOADS_FOR_LONG": 2.0, "WRONG_AFTER_A_WHILE": 8.0}
    monkeypatch.setattr(engine, "HANG_S", short.get(device, 20.0))
    monkeypatch.setattr(engine, "SHRINK_S", 2.0)

    # a search ends when it has found something; a busy machine draws few programs in a short time
    seconds = 0.3 if device.startswith(("RIGHT", "LISTED", "SLOW")) else 5.0

    def fork(
        place: str, arguments: Mapping[str, Any], timeout_s: float, most_s: float
    ) -> WorldOutcome:
        function = place.rpartition(":")[2]
        return server.run(
            f"{RANKS}:{function}",
            arguments={**arguments, "device": device},
            backend="cpu",
            group=False,
            timeout_s=timeout_s,
            most_s=most_s,
        )

    return search(SearchRequest(**{"area": "adding", "seconds": seconds, **request}), fork)


def test_a_right_device_has_programs_and_no_failure(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "RIGHT", monkeypatch)
    assert report.programs > 0
    assert report.calls >= report.programs
    assert report.failures == ()


def test_a_short_search_runs_a_program_however_long_drawing_takes_to_load(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "SLOW_TO_LOAD", monkeypatch, seconds=0.01)
    assert report.programs > 0, "a search without a program passes"


class SlowStarts:
    """A fork whose first processes take so many seconds before their first program."""

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


def test_a_start_that_is_slow_once_is_no_fault_of_the_device() -> None:
    fork = SlowStarts(30.0, 30.0)
    report = search(SearchRequest(area="adding", seconds=1.0), fork)
    assert (report.programs, report.failures) == (1, ())
    assert fork.limits[1] > 30.0 > fork.limits[0]


def test_a_device_on_which_no_program_begins_fails() -> None:
    report = search(SearchRequest(area="adding", seconds=1.0), SlowStarts(*[1e9] * 9))
    assert (report.programs, report.not_here) == (0, "")
    assert len(report.failures) == engine.MOST_LOST
    assert "before its first program" in report.failures[0].sentence


def test_a_short_search_runs_five_programs_of_a_slow_device(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the clock of the machine is no part of it: five take as long as they take
    monkeypatch.setattr(engine, "LEAST_S", 60.0)
    assert run(server, "SLOW", monkeypatch, seconds=0.01).programs == 5


def test_five_programs_that_take_too_long_are_not_waited_for(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LEAST_S", 0.01)
    # the first is not in the time
    assert run(server, "SLOW", monkeypatch, seconds=0.01).programs <= 2


def test_a_search_without_a_program_judges_nothing(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "LISTED_NONE", monkeypatch)
    assert (report.programs, report.not_here) == (0, "no program of adding ran")


def test_a_wrong_device_is_shown_by_the_smallest_program(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failure,) = run(server, "WRONG", monkeypatch).failures
    assert failure.program == [("add", {"n": 41})]
    assert (failure.seen, failure.runs) == (10, 10)
    assert failure.sentence == (
        "the sum is another one, in: add(n=41) "
        """(portagpu conform --program 'adding [["add",{"n":41}]]')"""
    )


def test_a_flaky_device_fails_so_many_times_of_ten(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failure,) = run(server, "FLAKY", monkeypatch).failures
    assert failure.difference == "the sum is another one"
    assert 0 < failure.seen < failure.runs or failure.runs == 11
    assert f", {failure.seen} of {failure.runs} times, in: " in failure.sentence


def test_an_error_is_a_difference(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    (failure,) = run(server, "RAISES", monkeypatch).failures
    assert failure.difference == "it raised RuntimeError: the device was lost"
    assert len(failure.program) == 1


def test_programs_that_end_their_process_are_named_and_the_search_goes_on(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "DIES", monkeypatch, seconds=20)
    assert len(report.failures) == engine.MOST_LOST
    for failure in report.failures:
        assert "SIGSEGV" in failure.difference
        assert [name for name, _ in failure.program] == ["add"]
        assert failure.seen == failure.runs


@pytest.mark.parametrize(
    ("device", "told"), [("DAMAGED", "the sum is another one"), ("DAMAGED_DIES", "SIGSEGV")]
)
def test_what_an_earlier_program_damaged_is_told_with_that_program(
    server: Ranks, monkeypatch: pytest.MonkeyPatch, device: str, told: str
) -> None:
    monkeypatch.setattr(engine, "MOST_LOST", 1)
    monkeypatch.setattr(engine, "LOST_SHRINK_S", 300.0)
    (failure,) = run(server, device, monkeypatch, seconds=20, seed=2).failures
    assert told in failure.difference
    assert failure.seen == failure.runs
    # the call that damages, and any four behind it: more than one program has
    assert len(failure.program) == 5, program_line(failure.program)
    assert failure.program[0][1].get("n", 0) > 40


def test_a_program_that_hangs_is_named(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_LOST", 1)
    (failure,) = run(server, "HANGS", monkeypatch).failures
    assert failure.difference.startswith("it did not end within 1 s and stood in _hangs")
    assert any(given.get("n", 0) > 40 for _, given in failure.program)


def test_what_loads_for_long_does_not_hang(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"start_s": 60.0, "seconds": 0.3}
    report = run(server, "LOADS_FOR_LONG", monkeypatch, **seconds)
    assert report.programs > 0
    assert report.failures == ()


def test_repetitions_of_a_slow_program_do_not_share_the_time_of_one(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [("add", {"n": 77})]
    (failure,) = run(server, "WRONG_AFTER_A_WHILE", monkeypatch, program=program).failures
    assert (failure.difference, failure.seen, failure.runs) == ("the sum is another one", 10, 10)


def test_a_death_now_and_then_is_told_as_such(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [("add", {"n": 77})]
    (failure,) = run(server, "DIES_AT_THE_THIRD", monkeypatch, program=program).failures
    assert "SIGSEGV" in failure.difference
    assert (failure.seen, failure.runs) == (3, 9)


def test_a_program_that_ends_the_server_of_its_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MOST_LOST", 1)
    with Ranks() as own:
        (failure,) = run(own, "ENDS_THE_SERVER", monkeypatch, seconds=20).failures
    assert "the rank server died of SIGKILL" in failure.difference
    assert any(given.get("n", 0) > 40 for _, given in failure.program)


@pytest.mark.parametrize("program", [None, [("add", {"n": 77})]])
def test_programs_of_which_nothing_is_judged_are_no_pass(
    server: Ranks, monkeypatch: pytest.MonkeyPatch, program: Program | None
) -> None:
    report = run(server, "UNJUDGED", monkeypatch, seconds=0.3, program=program)
    runs = report.programs
    assert runs > 0
    told = f"nothing of {runs} programs of adding was judged; no sample: {runs}"
    assert report.not_here == told


def test_a_failure_without_a_program_gives_no_command() -> None:
    failure = engine.Failure("adding", [], "its process ended before its first program", 1, 1)
    assert failure.sentence == "its process ended before its first program"


def test_one_program_is_repeated_alone(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    program = [("add", {"n": 7})]
    report = run(server, "WRONG", monkeypatch, program=program)
    assert (report.programs, report.failures) == (10, ())
    (failure,) = run(server, "WRONG", monkeypatch, program=[("add", {"n": 77})]).failures
    assert failure.program == [("add", {"n": 77})]


@pytest.mark.parametrize("name", [each for each in AREAS if not each.startswith("operators")])
def test_an_area_knows_the_calls_that_it_draws(name: str) -> None:
    area = load_area(name)
    known = area.calls()

    @settings(SETTINGS, max_examples=100)
    @seed(0)
    @given(area.programs(portagpu.backend("cpu")))
    def draws(program: Program) -> None:
        check_calls(name, program, known)

    draws()


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_a_program_with_an_unknown_call_is_wrong_usage(text: str, told: str) -> None:
    with pytest.raises(ProgramError) as raised:
        conform(ConformOptions(backend="cpu", program=text))
    assert str(raised.value) == told


def test_listed_programs_run_each_once(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(server, "LISTED", monkeypatch, seconds=20)
    assert (report.programs, report.total, report.failures) == (60, 60, ())
    assert report.aside == (("n ends in 0", 6),)


def test_listed_programs_go_on_after_a_difference(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "LISTED_WRONG", monkeypatch, seconds=20)
    assert report.programs == 60
    # by hand: 41 to 59 without 50
    numbers = sorted(failure.program[0][1]["n"] for failure in report.failures)
    assert numbers == [n for n in range(41, 60) if n != 50]
    assert {(failure.seen, failure.runs) for failure in report.failures} == {(10, 10)}


def test_no_more_listed_programs_than_can_be_read_are_told(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST_LISTED", 3)
    report = run(server, "LISTED_WRONG", monkeypatch, seconds=20)
    assert len(report.failures) == 3
    assert report.programs < 60


def test_listed_programs_go_on_behind_one_that_ends_its_process(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(server, "LISTED_DIES", monkeypatch, seconds=20)
    # those that ended their process returned nothing
    assert len({str(failure.program) for failure in report.failures}) == engine.MOST_LOST
    assert report.total == 60


def test_listed_programs_come_in_the_order_of_the_seed(
    server: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST_LISTED", 1)
    firsts = [
        run(server, "LISTED_WRONG", monkeypatch, seed=seed).failures[0].program[0][1]["n"]
        for seed in (1, 1, 2, 3)
    ]
    assert firsts[0] == firsts[1]
    assert len(set(firsts)) > 1


def test_what_a_machine_lacks_is_told(server: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(server, "LISTED_MISSING", monkeypatch)
    assert report.not_here == "install adding"
    again = run(server, "LISTED_MISSING", monkeypatch, program=[("add", {"n": 3})])
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
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="is no program: copy what stands behind --program"):
        from_text(text)


def test_an_unknown_area_is_refused() -> None:
    with pytest.raises(ProgramError, match="did you mean 'generators'"):
        load_area("generator")
