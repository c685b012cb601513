"""Ways to a PASS that was not earned: each ends in another verdict, and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from portagpu.runs.results.run import Verdict, new_run
from tests.support.case_files import by_id, conform, write_cases

if TYPE_CHECKING:
    from pathlib import Path
from tests.process.test_suite_unearned import (
    needs_torch,
)

# A world that fails once: rank 1, where it is the first to leave its mark in the folder.
ONCE = """
from pathlib import Path

def once(rank, value, folder, what):
    mark = Path(folder) / what
    if rank.rank == 1 and not mark.exists():
        mark.mkdir()
        {"die": lambda: os.kill(os.getpid(), signal.SIGKILL),
         "raise": lambda: 1 / 0,
         "hang": lambda: time.sleep(600)}[what]()
    return value

@case("collectives/once", spec="Is right.", capability="collectives",
      params={"value": (1, 2, 3)}, timeout_s=TIMEOUT)
def test_once(world, value):
    assert world(2, once, value=value, folder=FOLDER, what=WHAT) == [value, value]

@case("rng/fine", spec="Is fine.")
def test_fine(gpu): pass
"""


@needs_torch
@pytest.mark.parametrize(
    ("what", "alone", "whole", "said"),
    [
        ("die", Verdict.UNVERIFIED, Verdict.FAIL, "rank 1 died of SIGKILL"),
        ("raise", Verdict.PASS, Verdict.FAIL, "rank 1 raised ZeroDivisionError"),
        ("hang", Verdict.UNVERIFIED, Verdict.INCONCLUSIVE, "rank 1 hung"),
    ],
)
def test_a_shared_world_that_failed_once_is_reported(
    tmp_path: Path, what: str, alone: Verdict, whole: Verdict, said: str
) -> None:
    pytest.importorskip("torch")
    limit_s = 20.0 if what == "hang" else 30.0
    text = f"FOLDER, WHAT, TIMEOUT = {str(tmp_path)!r}, {what!r}, {limit_s}\n{ONCE}"
    results = by_id(conform("cpu", folder=write_cases(tmp_path / "cases", text)))
    for value in (1, 2, 3):
        found = results[f"collectives/once[value{value}]"]
        assert found.verdict is alone, f"{found.id}: {found.verdict} {found.reason}"
        assert alone is Verdict.PASS or said in found.reason
    reported = results["suite/world-of-collectives-once"]
    assert reported.verdict is whole, reported.reason
    assert said in reported.reason
    assert "alone each passed" in reported.reason
    assert results["rng/fine"].verdict is Verdict.PASS
    run = new_run()
    run.extend(list(results.values()))
    assert run.exit_code != 0
