"""The search: its programs repeat, failures shrink, and a process that ends costs one program."""

from __future__ import annotations

import pytest
from hypothesis import given, seed, settings

pytest.importorskip("torch")

from typing import TYPE_CHECKING

import portagpu
from portagpu.runs.world import Ranks
from portagpu.suites.search import engine, program_line
from portagpu.suites.search.area import AREAS, check_calls, load_area
from portagpu.suites.search.worker import SETTINGS
from tests.ranks.test_search_engine import run

if TYPE_CHECKING:
    from portagpu.suites.search.area import Program


def test_a_program_that_ends_the_server_of_its_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "MAX_LOST", 1)
    # each ends a server, which takes as long to start as torch to import
    monkeypatch.setattr(engine, "LOST_REPEATS", 1)
    with Ranks() as own:
        (failure,) = run(own, "ENDS_THE_SERVER", monkeypatch).failures
    assert "the rank server died of SIGKILL" in failure.difference
    assert any(given.get("n", 0) > 40 for _, given in failure.program)


@pytest.mark.parametrize(
    ("device", "reported"), [("DAMAGED", "the sum is another one"), ("DAMAGED_DIES", "SIGSEGV")]
)
def test_what_an_earlier_program_damaged_is_reported_with_that_program(
    search_ranks: Ranks, monkeypatch: pytest.MonkeyPatch, device: str, reported: str
) -> None:
    monkeypatch.setattr(engine, "MAX_LOST", 1)
    monkeypatch.setattr(engine, "LOST_SHRINK_S", 300.0)
    (failure,) = run(search_ranks, device, monkeypatch, seed=2).failures
    assert reported in failure.difference
    assert failure.seen == failure.runs
    # the call that damages, and any four after it: more than one program has
    assert len(failure.program) == 5, program_line(failure.program)
    assert failure.program[0][1].get("n", 0) > 40


@pytest.mark.parametrize(
    "name", [each for each in AREAS if not each.startswith("operators") and each != "sizes"]
)
def test_an_area_knows_the_calls_that_it_draws(name: str) -> None:
    area = load_area(name)
    known = area.calls()

    @settings(SETTINGS, max_examples=100)
    @seed(0)
    @given(area.programs(portagpu.backend("cpu")))
    def draws(program: Program) -> None:
        check_calls(name, program, known)

    draws()
