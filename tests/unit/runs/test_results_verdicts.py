"""How verdicts fold, which exit code each has, and what a run says of itself."""

from __future__ import annotations

import pytest

from portagpu.base.errors import ResultError
from portagpu.runs.results.run import Result, Run, RunInfo, new_run
from portagpu.runs.results.verdicts import Evidence, Verdict, exit_code, fold

P, F, E, U, N, S = (
    Verdict.PASS,
    Verdict.FAIL,
    Verdict.ERROR,
    Verdict.UNVERIFIED,
    Verdict.INCONCLUSIVE,
    Verdict.SKIP,
)


def result(name: str, verdict: Verdict, device: str | None = None, reason: str = "so") -> Result:
    return Result(
        id=name, suite="conformance", area="a", verdict=verdict, device=device, reason=reason
    )


def run_of(*results: Result, **info: bool) -> Run:
    return Run(RunInfo(id="r", started="2025-01-01T00:00:00Z", **info), list(results))


# results of a run, its verdict, its verdict under strict; written by hand from the contract
FOLDS = [
    ((), N, N),
    ((S,), N, N),
    ((S, S), N, N),
    ((U,), N, N),
    ((U, S), N, N),
    ((P,), P, P),
    ((P, S), P, P),
    ((P, U), P, U),
    ((U, P, S), P, U),
    ((N,), N, N),
    ((P, N), N, N),
    ((U, N), N, N),
    ((P, U, N), N, N),
    ((F,), F, F),
    ((P, F), F, F),
    ((F, U), F, F),
    ((F, N), F, F),
    ((F, S), F, F),
    ((E,), E, E),
    ((P, E), E, E),
    ((F, E), E, E),
    ((E, F), E, E),
    ((E, N, U), E, E),
    ((P, F, E, U, N, S), E, E),
]


@pytest.mark.parametrize(("verdicts", "plain", "strict"), FOLDS)
def test_results_fold_to_the_worst_that_counts(
    verdicts: tuple[Verdict, ...], plain: Verdict, strict: Verdict
) -> None:
    assert fold(verdicts) is plain
    assert fold(verdicts, strict=True) is strict
    assert fold(reversed(verdicts)) is plain, "the order of results must not matter"


def test_verdicts_are_the_six_of_the_contract() -> None:
    assert [str(v) for v in Verdict] == [
        *("PASS", "FAIL", "ERROR", "UNVERIFIED", "INCONCLUSIVE", "SKIP"),
    ]
    assert [str(b) for b in Evidence] == [
        *("declared", "recorded", "loaded", "compiled", "emulated", "executed"),
    ]


@pytest.mark.parametrize(
    ("verdict", "code"), [(P, 0), (F, 1), (E, 1), (N, 3), (U, 3), (S, 3)], ids=str
)
def test_only_pass_is_green(verdict: Verdict, code: int) -> None:
    assert exit_code(verdict) == code


def test_a_stopped_run_exits_130_and_is_never_a_pass() -> None:
    stopped = run_of(result("a", P), interrupted=True)
    assert stopped.exit_code == 130
    assert stopped.verdict is N
    assert stopped.summary_line() == "INCONCLUSIVE: interrupted after 1 result"
    assert run_of(result("a", F), interrupted=True).verdict is F
    assert run_of(result("a", P), result("b", U), interrupted=True, strict=True).verdict is N


def test_the_first_failure_and_the_first_named_device_are_found() -> None:
    run = run_of(
        result("a", P, "rank 0"),
        result("b", N, "rank 1"),
        result("c", F),
        result("d", E, "rank 2"),
        result("e", F, "rank 3"),
    )
    assert run.first_failed == "c", "the first FAIL or ERROR, whichever is worse"
    assert run.culprit == "rank 2", "a device that passed or was not judged is not a culprit"
    assert run.counts == {P: 1, F: 2, E: 1, U: 0, N: 1, S: 0}


@pytest.mark.parametrize(
    ("results", "strict", "line"),
    [
        ([("a", P)], False, "PASS"),
        ([("a", P), ("b", U), ("c", U)], False, "PASS, 2 unverified"),
        ([("a", P), ("b", U)], True, "UNVERIFIED: 1 measure with nothing to judge by"),
        ([("a", U), ("b", U)], False, "INCONCLUSIVE: nothing was judged, 2 unverified"),
        ([], False, "INCONCLUSIVE: nothing was judged"),
        ([("a", P), ("b", N), ("c", N)], False, "INCONCLUSIVE: b: so (and 1 more)"),
        ([("a", F), ("b", P)], False, "FAIL: a: so"),
        ([("a", F), ("b", E)], False, "ERROR: a (FAIL): so (and 1 more failure)"),
    ],
)
def test_the_summary_is_one_sentence(
    results: list[tuple[str, Verdict]], strict: bool, line: str
) -> None:
    run = run_of(*(result(name, verdict) for name, verdict in results), strict=strict)
    assert run.summary_line() == line


def test_the_summary_names_the_device_and_stays_on_one_line() -> None:
    run = run_of(result("collectives/all-reduce", F, "rank 2", "wrong sum\nin 3 words"))
    line, _, step = run.summary_line().partition("; next: ")
    assert line == "FAIL: collectives/all-reduce on rank 2: wrong sum in 3 words"
    assert "portagpu conform --only" in step


def test_one_id_is_reported_once_for_each_device() -> None:
    run = run_of(result("a", P, "cuda:0"), result("a", P, "cuda:1"))
    with pytest.raises(ResultError, match=r"results\[2\]\.id: a on cuda:1 was already reported"):
        run.add(result("a", F, "cuda:1"))
    assert len(run.results) == 2


def test_runs_have_ids_of_their_own_and_a_start_with_its_zone() -> None:
    first, second = new_run(["portagpu", "bench"]), new_run()
    assert first.info.id != second.info.id
    assert first.info.started.endswith("Z")
    assert first.info.versions["portagpu"]
    assert first.finish().info.duration_s >= 0
    assert second.finish(duration_s=1.5, interrupted=True).info.duration_s == 1.5
    assert second.exit_code == 130


def test_a_wrong_result_is_named_by_its_id() -> None:
    """An empty id is what is wrong itself, and the others are what one looks for."""
    for name, said in (("memory/copy", "memory/copy"), ("", "result")):
        with pytest.raises(ValueError, match=rf"^{said}\b"):
            Result(id=name, suite="bench", area="memory", verdict=Verdict.PASS, duration_s=-1.0)
