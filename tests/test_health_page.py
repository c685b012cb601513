"""The map of others' expectations names checks that exist, and says no more than is so."""

from __future__ import annotations

import pytest

from portagpu.bench import metrics
from portagpu.bench.suite import FURTHER_IDS
from portagpu.bringup import load_gates
from portagpu.results.advice import checks
from tests.health_page import VENDORS, read_data, status

DATA = read_data()
ROWS = [row for group in DATA["lists"] for row in group["rows"]]


def known_ids() -> set[str]:
    """The ids of bring-up that have an advice of their own, and the measures."""
    gates = {gate.id for gate in load_gates()}
    stated = {each for check in checks() if check.suite == "bringup" for each in check.ids}
    exact = {each for each in stated if "*" not in each and each.partition("/")[0] in gates}
    return exact | set(metrics()) | set(FURTHER_IDS)


def test_every_check_that_the_page_names_exists() -> None:
    named = {each for row in ROWS for each in row["checks"]}
    named |= {each for vendor in VENDORS for each in DATA["recorded"][vendor]}
    assert named <= known_ids(), f"there is no {sorted(named - known_ids())}"


def test_what_needs_a_device_is_never_recorded() -> None:
    """A recording holds what tools printed: no measure, no memory pattern, no conformance case."""
    without = {gate.id for gate in load_gates() if not gate.replay}
    for vendor in VENDORS:
        for each in DATA["recorded"][vendor]:
            assert each not in metrics(), each
            assert each.partition("/")[0] not in without, f"{each} cannot be replayed"


@pytest.mark.parametrize(
    ("listed", "recorded", "word"),
    [
        ([], ["a"], "not covered"),
        (["a", "b"], ["b", "a"], "recorded"),
        (["a", "b"], ["b"], "partly recorded"),
        (["a"], [], "asked"),
    ],
)
def test_the_word_of_a_row(listed: list[str], recorded: list[str], word: str) -> None:
    assert status(listed, recorded) == word


def test_the_four_lists_are_there_and_dated() -> None:
    titles = {group["title"]: group["source"] for group in DATA["lists"]}
    assert set(titles) == {"ClusterMAX", "DCGM", "RVS", "AMD's system acceptance"}
    assert all("2026-" in source for source in titles.values())
    levels = {
        row["expected"][0] for g in DATA["lists"] if g["title"] == "DCGM" for row in g["rows"]
    }
    assert levels == set("1234")


def test_a_row_that_is_not_covered_or_falls_short_says_of_what() -> None:
    open_ = [row["expected"] for row in ROWS if not row["checks"]]
    assert len(open_) > 10, "the page claims to cover everything"
