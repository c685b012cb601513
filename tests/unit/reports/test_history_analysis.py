"""Comparisons, trends and outliers over plain data, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")

from portagpu.base import units
from portagpu.reports.history.compare import compare, outliers, recent, trends
from portagpu.reports.history.model import (
    Machine,
    MeasureId,
    SelectionError,
    Series,
    StoredRun,
    changed_versions,
    in_words,
    judge,
    select,
)

DAY_S = 86_400.0


def stored(number: int, host: str = "a", target: str | None = "t", **versions: str) -> StoredRun:
    return StoredRun(
        key=number + 10,
        id=f"run-{number}",
        started_s=1_700_000_000.0 + number * DAY_S,
        machine=Machine(target, host),
        backend="cpu",
        versions=versions,
        verdict="PASS",
        digest=f"{number:x}",
        measures=1,
    )


def series(
    name: str,
    values: dict[int, float],
    unit: str = "GB/s",
    spread: float | dict[int, float] = float("nan"),
    device: str | None = None,
) -> Series:
    given = spread if isinstance(spread, dict) else dict.fromkeys(values, spread)
    spreads = [given.get(at, float("nan")) for at in values]
    return Series(
        MeasureId("performance", name, device, unit, "median"),
        np.array(list(values), dtype=np.int64),
        np.array(list(values.values()), dtype=float),
        np.array(spreads, dtype=float),
    )


def test_a_measure_of_another_suite_says_so() -> None:
    mine = MeasureId("performance", "memory/copy", None, "GB/s", "median")
    assert str(mine) == "memory/copy"
    assert str(mine._replace(suite="bringup")) == "memory/copy (bringup)"
    assert str(mine._replace(suite="bringup", device="cuda:1")) == "memory/copy on cuda:1 (bringup)"


@pytest.mark.parametrize(
    ("unit", "side"),
    [
        *((each, 1) for each in ("ns", "us", "µs", "ms", "s")),
        *((each, -1) for each in ("GB/s", "TFLOPS", "GFLOP/s", "TOPS", "tokens/s", "ratio")),
        *((each, 0) for each in ("1", "%", "B", "MiB", "°C", "W", "MHz", "products")),
    ],
)
def test_the_unit_says_which_side_is_worse(unit: str, side: int) -> None:
    assert units.worse_side(unit) == side
    words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("different", "different")}
    assert (judge(0.1, unit), judge(-0.1, unit)) == words[side]


def test_two_runs_are_compared_by_their_spreads() -> None:
    # 3.5 * 1.4826 * sqrt(0.3**2 + 0.4**2) = 2.59
    found = compare(
        [
            series("a/inside", {0: 20.0, 1: 22.5}, "us", {0: 0.3, 1: 0.4}),
            series("a/outside", {0: 20.0, 1: 22.7}, "us", {0: 0.3, 1: 0.4}),
            series("a/small", {0: 100.0, 1: 104.0}, "us", {0: 0.3, 1: 0.4}),
            series("a/faster", {0: 20.0, 1: 30.0}, "GB/s", {0: 0.3, 1: 0.4}),
            series("a/count", {0: 20.0, 1: 30.0}, "1", {0: 0.3}),
            series("a/unknown", {0: 20.0, 1: 30.0}),
            series("a/zero", {0: 0.0, 1: 1.0}, "us", 0.0),
            series("a/negative", {0: -2.0, 1: -1.0}, "us", 0.0),
            series("a/same", {0: 5.0, 1: 5.0}, "us", 0.0),
            series("a/only-a", {0: 1.0}),
            series("a/only-b", {1: 1.0}),
            series("a/neither", {2: 1.0}),
        ],
        [0],
        [1],
    )
    words = {each.what.id: each.word for each in found.differences}
    assert words == {
        "a/inside": "alike",
        "a/outside": "worse",
        "a/small": "alike",
        "a/faster": "better",
        "a/count": "different",
        "a/unknown": "not judged",
        "a/zero": "worse",
        "a/negative": "worse",
        "a/same": "alike",
    }
    by_id = {each.what.id: each for each in found.differences}
    assert by_id["a/outside"].ratio == pytest.approx(1.135)
    assert by_id["a/outside"].spread == pytest.approx(1.4826 * 0.5)
    assert by_id["a/small"].beyond, "it is less than 5 %, and beyond the spread"
    assert by_id["a/zero"].ratio is None
    assert by_id["a/unknown"].beyond is None
    assert [each.id for each in found.only_a] == ["a/only-a"]
    assert [each.id for each in found.only_b] == ["a/only-b"]


def test_sets_of_runs_are_compared_by_their_medians() -> None:
    values = {0: 10.0, 1: 11.0, 2: 30.0, 3: 20.0, 4: 21.0, 5: 22.0}
    (one,) = compare([series("a/b", values, "us", 0.1)], [0, 1, 2], [3, 4, 5], 0.0).differences
    assert (one.a, one.b, one.runs_a, one.runs_b) == (11.0, 21.0, 3, 3)
    # the MAD of both sides is 1, more than what the runs recorded; 3.5 * 1.4826 * sqrt(2) = 7.3
    assert one.spread == pytest.approx(1.4826 * 2**0.5)
    assert one.word == "worse"


def test_a_trend_is_one_line_a_machine_in_the_order_of_time() -> None:
    runs = [stored(0), stored(1, "b"), stored(2), stored(3)]
    found = trends([series("a/b", {3: 4.0, 0: 1.0, 1: 9.0, 2: 3.0}, spread={0: 0.5})], runs)
    assert [(each.machine.host, each.values) for each in found] == [
        ("a", (1.0, 3.0, 4.0)),
        ("b", (9.0,)),
    ]
    assert found[0].spreads == (0.5, None, None)
    assert (found[0].summary.median, found[0].summary.spread) == (3.0, 1.0)
    assert [point["run"] for point in found[0].to_json()["points"]] == ["run-0", "run-2", "run-3"]


def test_devices_of_the_newest_run_are_compared() -> None:
    runs = [stored(0), stored(1)]
    per_device = [
        series("a/b", {0: 1.0, 1: 40.0 if index == 5 else 50.0 + index / 10}, device=f"gpu:{index}")
        for index in range(8)
    ]
    (one,) = (each for each in outliers(per_device, runs).found if each.among == "devices")
    assert (one.who, one.value, one.median, one.peers) == ("gpu:5", 40.0, pytest.approx(50.25), 7)
    assert (one.what.device, one.word, one.run.id) == (None, "worse", "run-1")


def test_nodes_of_one_target_are_compared_by_their_newest_runs() -> None:
    hosts = ["a", "b", "c", "d", "e"]
    runs = [stored(0, "c"), *(stored(index + 1, host) for index, host in enumerate(hosts))]
    runs.append(stored(9, "other", "another target"))
    values = {0: 10.0, 1: 10.0, 2: 10.1, 3: 12.0, 4: 10.2, 5: 9.9, 6: 99.0}
    found = outliers([series("a/b", values, "us")], runs)
    (one,) = found.found
    assert (one.among, one.who, one.value, one.word) == ("nodes", "c", 12.0, "worse")
    assert (one.median, one.relative) == (10.1, pytest.approx(1.9 / 10.1))
    # one value is nobody's peer; hosts with one or two runs are not series over time
    assert (found.judged, found.few) == (1, 6)


def test_the_newest_run_is_compared_with_earlier_ones() -> None:
    runs = [stored(number) for number in range(30)]
    kept = recent(runs)
    assert [run.id for run in kept] == [f"run-{number}" for number in range(9, 30)]
    steady = {at: 10.0 + (at % 3) / 10 for at in range(20)}
    found = outliers([series("a/b", {**steady, 20: 8.0})], kept)
    (one,) = found.found
    assert (one.among, one.who, one.peers) == ("time", "run-29", 20)
    # an earlier one that was unlike the others is not news
    assert not outliers([series("a/b", {**steady, 4: 8.0, 20: 10.1})], kept).found
    # a newer run of other measures hides nothing
    (one,) = outliers([series("a/b", {**steady, 19: 8.0})], kept).found
    assert one.who == "run-28"


def test_software_that_differs_is_named() -> None:
    one = stored(0, torch="2.12", driver="580", kernel="6")
    changed = changed_versions(one, stored(1, torch="2.13", kernel="6"))
    assert changed == {"driver": ("580", "none"), "torch": ("2.12", "2.13")}
    assert in_words(changed) == "driver 580 -> none, torch 2.12 -> 2.13"
    assert in_words({}) == "no version changed"


RUNS = [stored(0, torch="2.12"), stored(1, "b", torch="2.12"), stored(2, torch="2.13")]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("run-1", [1]),
        ("run-2,run-0", [0, 2]),
        ("host=a", [0, 2]),
        ("host=a, torch=2.12", [0]),
        ("target=t,backend=cpu,verdict=PASS", [0, 1, 2]),
        ("since=2023-11-15T22:13:20Z", [1, 2]),
        ("since=2023-11-16", [2]),
        ("until=2023-11-16", [0, 1]),
        ("until=2023-11-16T00:00:00+01:00,host=b", [1]),
    ],
)
def test_words_select_runs(words: str, numbers: list[int]) -> None:
    assert select(words, RUNS) == [RUNS[number] for number in numbers]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run-9", "no run of the store has the id 'run-9': did you mean 'run-"),
        ("run", "'run' begins 3 ids, such as run-0 and run-1: write more of it"),
        ("", "no run of the store has the id ''"),
        ("host=c", "no run of the store has host=c"),
        ("host=", "'host=' is not a condition: write NAME=VALUE"),
        ("since=yesterday", "'yesterday' is not a time: write 2026-11-23"),
    ],
)
def test_words_that_select_nothing_say_why(words: str, said: str) -> None:
    with pytest.raises(SelectionError) as caught:
        select(words, RUNS)
    assert said in str(caught.value)
