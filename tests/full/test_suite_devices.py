"""A machine with several devices: each is judged, and the one that computes wrong is named."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from portagpu import cli
from portagpu.checks.bringup.checks import numerics
from portagpu.runs.results.run import Verdict, new_run
from portagpu.suites.conformance import Selection
from portagpu.suites.conformance.engine import judge_cases
from tests.conftest import Child
from tests.process.test_suite_devices import (
    CLOSED,
    DATA,
    MODULE,
    PRODUCT,
    RANKS,
    WRONG,
    _cases,
    _context,
    _installed,
    _judged,
)
from tests.process.test_suite_devices import site as site
from tests.support.case_files import conform, only_files

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.engine import Progress
    from portagpu.runs.results.run import Run
    from portagpu.runs.world import Ranks
    from portagpu.suites.conformance import ConformOptions

pytestmark = pytest.mark.torch


def test_the_device_that_computes_wrong_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {(each.id, each.device): each for each in _judged(site, monkeypatch, *range(4))}
    verdicts = {key: each.verdict for key, each in found.items()}
    assert verdicts == {
        (DATA, None): Verdict.PASS,
        (RANKS, None): Verdict.PASS,
        (PRODUCT, "cpu:0"): Verdict.PASS,
        (PRODUCT, "cpu:1"): Verdict.PASS,
        (PRODUCT, f"cpu:{WRONG}"): Verdict.FAIL,
        ("suite/device", f"many device {CLOSED}"): Verdict.ERROR,
    }
    assert "the device fell off the bus" in found["suite/device", f"many device {CLOSED}"].reason


def test_the_verb_judges_the_devices_that_it_is_asked_for(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _installed(site, monkeypatch)
    monkeypatch.chdir(tmp_path)
    only_files(monkeypatch, _cases(site))

    def run(*arguments: str) -> Child:
        code = cli.main(["conform", "--backend", "many", "--only", PRODUCT, *arguments])
        return Child(code, *capsys.readouterr())

    first = run()
    assert first.code == 0, first.out + first.err
    assert "cpu:0 of 4 devices: --index all judges all" in first.out
    second = run("--index", str(WRONG), "--json", "result.json")
    assert second.code == 1
    assert f"{PRODUCT} on cpu:{WRONG}" in second.out
    document = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert document["culprit"] == f"cpu:{WRONG}"
    every = run("--index", "all", "--json", "result.json")
    assert every.code == 1
    document = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert document["counts"] | {"PASS": 2, "FAIL": 1, "ERROR": 1} == document["counts"]
    for odd in ("7", "-1", "some"):
        refused = run("--index", odd)
        assert refused.code == 2, refused.out
        assert ("it sees 4" if odd == "7" else "all") in refused.err


def test_a_failure_on_another_device_is_not_passed_by_the_first(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _installed(site, monkeypatch)
    run = new_run(["portagpu", "conform"])
    judge = partial(conform, "many", folder=_cases(site))
    run.results += judge(selection=Selection(only=(PRODUCT,)), index=(0, WRONG))
    run.finish().write_json(tmp_path / "run.json")
    again = Selection(failed_in=tmp_path / "run.json")
    found = [(each.id, each.verdict) for each in judge(selection=again)]
    assert found == [
        (PRODUCT, Verdict.PASS),
        (f"suite/not-again-cpu-{WRONG}", Verdict.INCONCLUSIVE),
    ]
    found = [(each.id, each.verdict) for each in judge(selection=again, index=WRONG)]
    assert found == [(PRODUCT, Verdict.FAIL)]


def test_the_gate_of_such_a_machine_fails_and_names_the_device(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortened(run: Run, options: ConformOptions, progress: Progress, ranks: Ranks) -> None:
        selection = replace(options.selection, only=(PRODUCT,))
        judge_cases(run, replace(options, selection=selection, folder=_cases(site)), progress)

    _installed(site, monkeypatch)
    monkeypatch.setattr(numerics, "judge_cases", shortened)
    found = [(each.id, each.device, each.verdict) for each in numerics.check(_context(3))]
    assert found == [
        (PRODUCT, "cpu:0", Verdict.PASS),
        ("numerics/device", "cpu:1", Verdict.PASS),
        (PRODUCT, f"cpu:{WRONG}", Verdict.FAIL),
        ("numerics/device", f"cpu:{WRONG}", Verdict.FAIL),
    ]


def test_a_device_that_is_one_of_the_others_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MODULE.replace('torch.device("cpu", index)', 'torch.device("cpu", 0)')
    (site / "portagpu_many.py").write_text(source, "utf-8")
    *_, last = _judged(site, monkeypatch, 0, 1)
    assert (last.id, last.device) == ("suite/device", "many device 1")
    assert last.verdict is Verdict.ERROR
    assert "opens as cpu:0, which was judged already" in last.reason
