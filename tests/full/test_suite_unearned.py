"""Ways to a PASS that was not earned: each ends in another verdict, and says why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from portagpu import cli
from portagpu.runs.results.run import Verdict, new_run
from portagpu.suites.conformance import Selection
from tests.process.test_suite_unearned import needs_torch
from tests.support import registry_state
from tests.support.case_files import by_id, conform, copy_cases, only_files, write_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path


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


GIVEN_UP = """
@case("rng/given-up", spec="Ends the run.")
def test_given_up(gpu):
    import pytest
    mark = Path(FOLDER) / "given-up"
    if not mark.exists():
        mark.mkdir()
        ENDS

@case("rng/next", spec="Is fine.")
def test_next(gpu): pass
"""


OVERRIDES_ALL = """
from portagpu.devices.contract import Override
from portagpu_cpu.plugin import CpuPlugin
from portagpu_cpu.backend import CpuBackend

class Broken(CpuBackend):
    __slots__ = ()
    def manual_seed(self, seed): pass
    def mem_get_info(self): return (-1, 0)

class Careless(CpuPlugin):
    name = "careless"
    overrides = (Override(pattern="*/*", outcome="undefined", reason="all", url="https://x.org"),)
    def open(self, index):
        handle = Broken(self, index)
        handle.name = "careless"
        return handle

PLUGIN = Careless()
"""


SEGFAULTS_ONCE = """
import os, signal
from pathlib import Path
from portagpu_cpu.plugin import CpuPlugin

class Once(CpuPlugin):
    name = "once"
    def open(self, index):
        handle = super().open(index)
        handle.name = "once"
        mark = Path(os.environ["ONCE_FOLDER"]) / "died"
        if os.environ.get("RANK") == "1" and not mark.exists():
            mark.mkdir()
            os.kill(os.getpid(), signal.SIGSEGV)
        return handle

PLUGIN = Once()
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


@needs_torch
def test_a_backend_cannot_override_its_way_to_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    install(
        tmp_path, "portagpu-careless", {"careless": "careless:PLUGIN"}, {"careless": OVERRIDES_ALL}
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry_state.forget(monkeypatch)
    only_files(monkeypatch, copy_cases(tmp_path / "cases", "rng", "memory"))
    words = ("--only", "rng/seed-repeats", "--only", "memory/free*", "--json", "-")
    code = cli.main(["conform", "--backend", "careless", *words])
    out, err = capsys.readouterr()
    assert code == 3, err
    verdicts = {each["id"]: each["verdict"] for each in json.loads(out)["results"]}
    assert verdicts["suite/unjudged-rng"] == verdicts["suite/unjudged-memory"] == "INCONCLUSIVE"
    assert "Unverified:" in err


@needs_torch
def test_a_form_that_fails_alone_explains_the_world_that_it_shared(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
def dies_for_two(rank, value):
    if value == 2 and rank.rank == 1: os.kill(os.getpid(), signal.SIGSEGV)
    return value

@case("collectives/dies", spec="Is right.", capability="collectives", params={"value": (1, 2)})
def test_dies(world, value): assert world(2, dies_for_two, value=value) == [value, value]
"""
    results = by_id(conform("cpu", folder=write_cases(tmp_path, text)))
    assert results["collectives/dies[value2]"].verdict is Verdict.FAIL
    assert results["collectives/dies[value1]"].verdict is Verdict.UNVERIFIED
    assert "suite/world-of-collectives-dies" not in results
    only = Selection(only=("collectives/dies[value1]",))
    (alone,) = conform("cpu", folder=tmp_path, selection=only)
    assert alone.verdict is Verdict.PASS, "a form that is not asked for was run too"


@needs_torch
@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_a_backend_whose_rank_dies_in_its_first_world_does_not_pass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strict: tuple[str, ...],
) -> None:
    pytest.importorskip("torch")
    install(
        tmp_path, "portagpu-once", {"once": "once_backend:PLUGIN"}, {"once_backend": SEGFAULTS_ONCE}
    )
    words = ["conform", "--backend", "once", "--only", "collectives/barrier*", "--json", "-"]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ONCE_FOLDER", str(tmp_path))
    registry_state.forget(monkeypatch)
    only_files(monkeypatch, copy_cases(tmp_path / "cases", "collectives_async"))
    code = cli.main([*words, *strict])
    assert (tmp_path / "died").exists(), "no rank died"
    said = capsys.readouterr().err
    assert code == 1, said
    assert "rank 1 died of SIGSEGV" in said


@needs_torch
@pytest.mark.parametrize("ends", ["pytest.exit('enough')", "raise KeyboardInterrupt"])
def test_a_case_without_a_result_is_not_tried_again(tmp_path: Path, ends: str) -> None:
    pytest.importorskip("torch")
    text = f"from pathlib import Path\nFOLDER = {str(tmp_path)!r}\n{GIVEN_UP.replace('ENDS', ends)}"
    results = by_id(conform("cpu", folder=write_cases(tmp_path / "cases", text)))
    assert results["rng/given-up"].verdict is Verdict.ERROR
    assert "gave it up without a result" in results["rng/given-up"].reason
    assert results["rng/next"].verdict is Verdict.PASS
