"""Parts of the suite, its order, and what failed last time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Result, Verdict, new_run
from portagpu.suites.conformance import Selection
from portagpu.suites.conformance.cases import base_id
from portagpu.suites.conformance.messages import ListedCase
from portagpu.suites.conformance.options import SelectionError, seed_of

if TYPE_CHECKING:
    from pathlib import Path

CASES = [
    ListedCase(id=f"rng/case-{letter}[n{n}]", area="rng", spec="Passes.")
    for letter in "abcdefg"
    for n in range(3)
]


def ids(selection: Selection) -> list[str]:
    return [each.id for each in selection.choose(CASES)]


def document(path: Path, **verdicts: str) -> Path:
    return written(path, {f"rng/case-{name[0]}[{name[2:]}]": v for name, v in verdicts.items()})


def written(path: Path, verdicts: dict[str, str], suite: str = "conformance") -> Path:
    """A result document with these verdicts by id."""
    run = new_run(["portagpu", "conform"])
    for name, verdict in verdicts.items():
        area = name.partition("/")[0]
        run.add(
            Result(id=name, suite=suite, area=area, verdict=Verdict(verdict), reason="it was so")
        )
    return run.write_json(path)


def test_shuffle_is_a_permutation_that_repeats() -> None:
    first = ids(Selection(shuffle=7))
    assert first == ids(Selection(shuffle=7))
    assert first != ids(Selection(shuffle=8))
    assert sorted(first) == sorted(ids(Selection())) != first
    assert not Selection(shuffle=7).partial


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shards_are_the_whole_and_share_no_function(n: int) -> None:
    parts = [ids(Selection(shard=(i, n))) for i in range(1, n + 1)]
    assert sorted(each for part in parts for each in part) == sorted(ids(Selection()))
    functions = [{base_id(each) for each in part} for part in parts]
    assert sum(map(len, functions)) == len(set().union(*functions))


@pytest.mark.parametrize(
    ("shard", "said"),
    [((0, 2), "no part 0 of 2"), ((3, 2), "parts are 1/2 to 2/2"), ((8, 8), "is empty")],
)
def test_a_part_that_is_none_is_refused(shard: tuple[int, int], said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        ids(Selection(shard=shard))


def test_last_failed_takes_failures_and_errors_alone(tmp_path: Path) -> None:
    file = document(
        tmp_path / "result.json", a_n0="FAIL", b_n1="PASS", c_n2="ERROR", d_n0="INCONCLUSIVE"
    )
    for given in (file, tmp_path):
        chosen = Selection(failed_in=given)
        assert ids(chosen) == ["rng/case-a[n0]", "rng/case-c[n2]"]
        assert chosen.partial
    assert ids(Selection(failed_in=file, only=("rng/case-c",))) == ["rng/case-c[n2]"]


def test_last_failed_without_a_failure_says_so(tmp_path: Path) -> None:
    file = document(tmp_path / "good.json", a_n0="PASS")
    with pytest.raises(SelectionError, match=r"no case that is asked for failed in .*good\.json"):
        ids(Selection(failed_in=file))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"results": [7]}', '{"results": {"id": 1}}', "[" * 100_000]
)
def test_last_failed_of_another_file_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SelectionError, match="give a result document") as caught:
        ids(Selection(failed_in=file))
    assert "\n" not in str(caught.value)
    with pytest.raises(SelectionError, match="cannot be read: No such file"):
        ids(Selection(failed_in=tmp_path / "missing.json"))


def test_what_failed_and_is_not_a_case_any_more_is_not_lost(tmp_path: Path) -> None:
    left = {"rng/case-a[n0]": "FAIL", "rng/renamed": "FAIL", "suite/override-1": "ERROR"}
    chosen = Selection(failed_in=written(tmp_path / "result.json", left))
    assert ids(chosen) == ["rng/case-a[n0]"]
    assert chosen.unknown_failed_ids(CASES) == ["rng/renamed", "suite/override-1"]
    del left["rng/case-a[n0]"]
    chosen = Selection(failed_in=written(tmp_path / "result.json", left))
    assert ids(chosen) == []
    assert len(chosen.unknown_failed_ids(CASES)) == 2


def test_the_failed_gates_of_a_bring_up_are_not_cases(tmp_path: Path) -> None:
    file = written(tmp_path / "result.json", {"identity/target": "FAIL"}, suite="bringup")
    assert Selection(failed_in=file).unknown_failed_ids(CASES) == []


def test_a_selection_keeps_what_it_read_when_its_file_is_written_again(tmp_path: Path) -> None:
    file = document(tmp_path / "result.json", a_n0="FAIL")
    chosen = Selection(failed_in=file)
    document(file, b_n0="PASS")
    assert ids(replace(chosen, only=("rng",))) == ["rng/case-a[n0]"]


def test_cases_of_the_deep_level_run_there_and_by_their_whole_names(tmp_path: Path) -> None:
    slow = [
        ListedCase(id=f"rng/slow[n{n}]", area="rng", spec="Passes.", default=not n)
        for n in range(2)
    ]
    cases = [*CASES, *slow]
    usual = [each.id for each in Selection().choose(cases)]
    assert usual == [*(each.id for each in CASES), "rng/slow[n0]"]
    assert not Selection().partial
    assert len(Selection(deep=True).choose(cases)) == len(cases)
    named = [each.id for each in slow]
    assert [each.id for each in Selection(only=("rng/slow",)).choose(cases)] == named
    assert [each.id for each in Selection(only=("rng/slow[n1]",)).choose(cases)] == named[1:]
    assert [each.id for each in Selection(only=("rng/slo*",)).choose(cases)] == named[:1]
    failed = written(tmp_path / "result.json", {"rng/slow[n1]": "FAIL"})
    assert [each.id for each in Selection(failed_in=failed).choose(cases)] == named[1:]
    with pytest.raises(SelectionError, match=r"all cases of rng/slow\* are of the deep level"):
        Selection(only=("rng/slow*",)).choose(slow[1:])


def test_the_seed_is_of_the_day_in_utc_and_of_the_version() -> None:
    west = timezone(timedelta(hours=-5))
    evening = datetime(2026, 11, 30, 20, tzinfo=west)
    assert seed_of(evening.astimezone(UTC), "0.1.0") == 20261201000100
    assert seed_of(evening, "0.1.0") == 20261201000100, "the day was not that of UTC"
    assert seed_of(evening, "2.13.1rc2") == 20261201021301
    assert 0 <= seed_of() < 2**63
