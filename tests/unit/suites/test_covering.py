"""Covering arrays: every pair of values meets, sooner than by chance, and a seed repeats them."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

from portagpu.suites.search.area import Rows, Sweep, Swept, once


def chance(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - numbers, no secret


LISTS: dict[str, list[Any]] = {
    "dtype": list("abcdefghij"),
    "kind": list("uvwxyz"),
    "shape": [[n] for n in range(12)],
    "layout": list("ABCDEFG"),
    "seed": list(range(100)),
}


def pairs_of(rows: list[dict[str, Any]]) -> set[Any]:
    """The pairs that met, counted apart from the code under test; without the seed."""
    return {
        ((one, repr(row[one])), (other, repr(row[other])))
        for row in rows
        for one, other in combinations([name for name in LISTS if name != "seed"], 2)
    }


def test_all_pairs_meet_in_few_rows() -> None:
    rows = Rows(LISTS, chance(3))
    sizes = [10, 6, 12, 7]
    assert rows.total == sum(a * b for a, b in combinations(sizes, 2))
    found = []
    while rows.covered < rows.total:
        found.append(rows.row())
        assert rows.covered == len(pairs_of(found))
    # no fewer than 10 x 12; chance needs about 600
    assert 120 <= len(found) <= 180
    assert list(found[0]) == list(LISTS)


def test_rows_start_where_the_most_pairs_are_left() -> None:
    lists = {name: list(range(10)) for name in "abcdef"}
    for seed in range(5):
        rows, count = Rows(lists, chance(seed)), 0
        while rows.covered < rows.total:
            rows.row()
            count += 1
        # two lists alone need 10 x 10; from any other start it takes 163 and more
        assert 100 <= count <= 150, seed


def test_the_first_rows_have_more_pairs_than_chance() -> None:
    rows, free = Rows(LISTS, chance(5)), chance(6)
    greedy = [rows.row() for _ in range(27)]
    drawn = [{name: free.choice(values) for name, values in LISTS.items()} for _ in range(27)]
    assert len(pairs_of(greedy)) > 1.15 * len(pairs_of(drawn))
    assert len({row["seed"] for row in greedy}) > 10, "what only numbers is drawn"


def test_a_seed_repeats_the_rows_and_another_has_others() -> None:
    one, same, other = ([Rows(LISTS, chance(s)).row() for _ in range(3)] for s in (1, 1, 2))
    assert one == same != other


def test_lists_without_pairs_and_equal_values() -> None:
    rows = Rows({"op": ["x"], "seed": [1]}, chance(0))
    assert (rows.total, rows.covered, rows.row()) == (0, 0, {"op": "x", "seed": 1})
    assert once([1, [2], 1, [2], "1"]) == [1, [2], "1"]


def test_a_sweep_has_each_call_as_often_as_it_says_until_all_pairs_met() -> None:
    calls = [
        Swept("often", {"op": "sum"}, Rows({"a": [1, 2], "b": [3, 4]}, chance(0)), times=2),
        Swept("once", {}, Rows({"c": [5, 6, 7], "d": [8, 9]}, chance(0))),
    ]
    sweep = Sweep(calls, chance(0), 4, lambda program: [*program, ("end", {})])
    programs = list(sweep.programs())
    assert sweep.covered == sweep.total == 4 + 6
    every = [name for program in programs for name, _ in program if name != "end"]
    assert every.count("often") == 2 * every.count("once")
    assert all(program[-1] == ("end", {}) and len(program) <= 5 for program in programs)
    assert all(given["op"] == "sum" for program in programs for n, given in program if n == "often")
    assert calls[0].fits({"op": "sum", "a": 1, "b": 3})
    assert not calls[0].fits({"op": "mean", "a": 1, "b": 3})
