"""The figures on the doctor: every case of torch's analyser is solved, and a miss is reported."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.checks.collectives_doctor import known_findings
from tests.benchmarks import doctor_figures as figures
from tests.support.flight_recorder_cases import own_cases, torch_cases
from tests.vendor_texts.test_doctor_logs import line, rank

if TYPE_CHECKING:
    from tests.benchmarks.doctor_figures import DumpFigure


@pytest.fixture(scope="module")
def solved() -> list[DumpFigure]:
    return figures.dump_figures([*torch_cases(), *own_cases()])


def test_every_case_of_torchs_analyser_is_solved(solved: list[DumpFigure]) -> None:
    wrong = {e.case.name: (e.ours, e.case.shows) for e in solved if not e.is_solved}
    assert not wrong
    assert len(solved) >= 50


def test_torchs_analyser_says_what_its_tests_say(solved: list[DumpFigure]) -> None:
    """Else the table compares the doctor with something else."""
    for each in solved:
        if each.case.torch_says:
            assert each.torch.removeprefix("crash: ") == each.case.torch_says, each.case.name


def test_what_torch_finds_wrong_is_a_problem_for_the_doctor(solved: list[DumpFigure]) -> None:
    for each in solved:
        if each.torch.startswith("fails") or "MISMATCH" in each.torch:
            assert set(each.ours) - {"in-flight"}, each.case.name


def test_an_unsolved_case_and_a_missed_finding_are_reported(
    capsys: pytest.CaptureFixture[str], solved: list[DumpFigure]
) -> None:
    case = replace(solved[0].case, shows=("shape",))
    figures.print_dumps([replace(solved[0], case=case)])
    assert "WRONG: it shows shape\n\n0 of 1 solved" in capsys.readouterr().out
    text = "\n".join([*rank(0, 1), line("NCCL_IB_DISABLE set by environment to 1.")])
    found = figures.log_figure("x", text, ["sockets"], ["2 of 2 ranks"], ["no such words"])
    assert (found.lines, found.read, found.hits) == (4, 4, 0)
    assert found.misses == ("sockets", "summary: 2 of 2 ranks", "not in the log: no such words")
    assert found.beyond == ("rdma-turned-off",)
    figures.print_logs([found])
    assert "sockets, summary: 2 of 2 ranks" in capsys.readouterr().out


def test_every_written_log_shows_its_finding_and_no_other() -> None:
    for each in figures.written_logs():
        assert (each.misses, each.beyond) == ((), ()), each.name


def test_readings_of_recorded_logs_name_findings_and_sources() -> None:
    read = tomllib.loads(figures.READINGS.read_text(encoding="utf-8"))["log"]
    for each in read:
        assert each["source"]
        for one in each.get("finding", ()):
            assert one["id"] in known_findings()
            assert one["quote"]
    assert list(figures.recorded_logs([])) == [each["name"] for each in read]
