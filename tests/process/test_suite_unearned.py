"""Ways to a PASS that was not earned: each ends in another verdict, and says why."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from portagpu.base import installation as contents
from portagpu.base.installation import DamagedInstallation
from portagpu.base.paths import matrix_dir
from portagpu.checks.bringup.gates import load_gates
from portagpu.facts.targets import ExpectedFailure
from portagpu.runs.results.run import Evidence, Result, Verdict, new_run, read_json
from portagpu.suites.conformance import Selection
from portagpu.suites.conformance.judge import (
    apply_expected_failures,
    mostly_unjudged_areas,
    shared_world_failures,
    stale_expected_failures,
    today,
)
from tests.conftest import CHILD_LIMIT_S
from tests.support.case_files import by_id, conform, write_cases
from tests.support.ocp_rules import lines_of, of_run, of_steps, problems
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("forked")

needs_torch = pytest.mark.torch


def test_a_world_that_raised_or_died_for_no_case_fails_the_run() -> None:
    how = {"state": "died", "sentence": "rank 1 died of SIGKILL"}
    (found,) = shared_world_failures({"collectives/x": how}, set())
    assert (found.verdict, found.evidence) == (Verdict.FAIL, (Evidence.EXECUTED,))
    assert shared_world_failures({"collectives/x": how}, {"collectives/x"}) == []
    (found,) = shared_world_failures({"collectives/x": {**how, "state": "hung"}}, set())
    assert found.verdict is Verdict.INCONCLUSIVE


def _result(name: str, verdict: Verdict) -> Result:
    area = name.partition("/")[0]
    return Result(id=name, suite="conformance", area=area, verdict=verdict, reason="it was so")


def test_an_area_of_which_nothing_is_judged_is_reported() -> None:
    results = [
        _result("rng/a", Verdict.UNVERIFIED),
        _result("rng/b", Verdict.SKIP),
        _result("memory/a", Verdict.UNVERIFIED),
        _result("memory/b", Verdict.PASS),
        _result("graphs/a", Verdict.SKIP),
    ]
    (found,) = mostly_unjudged_areas(results, {"rng": 2, "memory": 1})
    assert (found.id, found.verdict) == ("suite/unjudged-rng", Verdict.INCONCLUSIVE)


@needs_torch
def test_a_suite_of_one_file_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    left = tmp_path / "conformance"
    left.mkdir()
    for name in ("test_graphs.py", "test_telemetry.py"):
        shutil.copy(matrix_dir() / "conformance" / name, left)
    monkeypatch.setattr("portagpu.suites.conformance.runner.matrix_dir", lambda: tmp_path)
    results = by_id(conform("cpu", selection=Selection(only=("telemetry/*",))))
    damage = results["suite/contents"]
    assert damage.verdict is Verdict.ERROR
    assert re.search(r"\b0 of \d+ in memory\b", damage.reason)
    assert "reinstall portagpu" in damage.reason
    assert "in telemetry" not in damage.reason


def test_a_checklist_that_lost_a_gate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (matrix_dir() / "bringup" / "gates.toml").read_text(encoding="utf-8")
    (tmp_path / "bringup").mkdir()
    cut = whole.partition('[[gate]]\nid = "memory"')[0]
    (tmp_path / "bringup" / "gates.toml").write_text(cut, encoding="utf-8")
    monkeypatch.setattr("portagpu.checks.bringup.gates.matrix_dir", lambda: tmp_path)
    with pytest.raises(DamagedInstallation, match=r"the gate memory is missing: reinstall"):
        load_gates()


@pytest.mark.parametrize("text", [None, "", "schema = 7", '{"a": 1}', "\x00"])
def test_contents_that_cannot_be_read_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "contents.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(contents, "matrix_dir", lambda: tmp_path)
    with pytest.raises(DamagedInstallation, match=r"damaged: .*contents\.toml: .*; reinstall"):
        contents.stated_gates()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A matrix of one file in an installed wheel, which is the distribution that is asked."""
    file = tmp_path / "portagpu" / "_matrix" / "some.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"a = 1\n").digest()).rstrip(b"=").decode()
    info = tmp_path / "portagpu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: portagpu\nVersion: 1.0\n")
    # the command is elsewhere after pip's --target
    rows = f"../../bin/portagpu,sha256={digest},6\nportagpu/_matrix/some.toml,sha256={digest},6\n"
    (info / "RECORD").write_text(rows)
    found = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    monkeypatch.setattr(contents, "__file__", str(tmp_path / "portagpu" / "contents.py"))
    monkeypatch.setattr(contents, "matrix_dir", lambda: file.parent)
    return file


def test_a_file_that_is_not_as_it_was_installed_is_named(installed: Path) -> None:
    check = contents.check_installation.__wrapped__
    check()
    installed.write_bytes(b"a = 2\n")
    with pytest.raises(DamagedInstallation, match=r"some\.toml is not as it was installed"):
        check()
    installed.unlink()
    with pytest.raises(DamagedInstallation, match=r"some\.toml cannot be compared .*: .*No such"):
        check()


@pytest.mark.parametrize(
    "record",
    [
        "",
        "portagpu/_matrix/some.toml,,\n",
        "portagpu/_matrix/some.toml\n",
        "portagpu/_matrix/other.toml,sha256=x,6\n",
        "portagpu/_matrix/some.toml,sha999=x,6\n",
        None,
    ],
)
def test_a_record_that_lost_a_file_is_damage_too(installed: Path, record: str | None) -> None:
    file = installed.parents[2] / "portagpu-1.0.dist-info" / "RECORD"
    if record is None:
        file.unlink()
    else:
        file.write_text(record)
    with pytest.raises(DamagedInstallation, match=r"record.*; reinstall portagpu"):
        contents.check_installation.__wrapped__()


@needs_torch
def test_what_cannot_run_again_keeps_last_failed_from_passing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = new_run()
    for name in ("rng/fine", "rng/gone", "suite/test_rng.py"):
        run.add(_result(name, Verdict.ERROR))
    text = '@case("rng/fine", spec="Is fine.")\ndef test_fine(gpu): pass\n'
    folder = write_cases(tmp_path / "cases", text)
    selection = Selection(failed_in=run.write_json(tmp_path / "result.json"))
    results = by_id(conform("cpu", folder=folder, selection=selection))
    assert results.pop("rng/fine").verdict is Verdict.PASS
    assert {each.verdict for each in results.values()} == {Verdict.INCONCLUSIVE}
    assert set(results) == {"rng/gone", "suite/test_rng.py"}


@needs_torch
@pytest.mark.parametrize("verb", ["conform", "bench", "compile"])
def test_a_run_that_is_killed_leaves_no_older_verdict(tmp_path: Path, verb: str) -> None:
    pytest.importorskip("torch")
    old = new_run(["portagpu", verb])
    old.add(_result("rng/old", Verdict.PASS))
    file = old.finish().write_json(tmp_path / "result.json")
    junit = tmp_path / "junit.xml"
    words = {
        "conform": ["--backend", "cpu", "--junit", str(junit)],
        "bench": ["--backend", "cpu", "--junit", str(junit)],
        "compile": ["--all", "--no-cache"],
    }[verb]
    junit.write_text("<testsuites/>")
    child = subprocess.Popen(
        [sys.executable, "-m", "portagpu", verb, *words, "--json", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        written = junit if "--junit" in words else file
        before = written.read_bytes()
        wait_until(
            lambda: written.read_bytes() != before or child.poll() is not None,
            "the run does not begin",
        )
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    left = read_json(file)
    assert left.info.interrupted
    assert left.verdict is Verdict.INCONCLUSIVE
    if verb != "compile":
        assert "interrupted" in junit.read_text()


@needs_torch
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_leaves_the_lines_of_what_was_judged(
    tmp_path: Path, signal_: signal.Signals
) -> None:
    pytest.importorskip("torch")
    place = tmp_path / "new" / "run.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-m", "portagpu", "conform", "--backend", "cpu", "--ocp", str(place)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def steps() -> int:
        return place.read_bytes().count(b'"testStepEnd"') if place.exists() else 0

    try:
        seen = wait_until(lambda: steps() > 2 and steps(), "no result is written as it comes")
        assert child.poll() is None, "the suite was over before a result was read"
        child.send_signal(signal_)
        child.wait(CHILD_LIMIT_S)
    finally:
        child.kill()
        child.wait()
    lines = lines_of(place.read_text("utf-8"))
    killed = signal_ is signal.SIGKILL
    assert problems(lines, cut_off=killed) == []
    assert len(of_steps(lines, "testStepEnd")) >= seen
    assert of_run(lines, "testRunStart")[0]["dutInfo"]["hardwareInfos"], "no device is described"
    ends = [] if killed else [{"status": "SKIP", "result": "NOT_APPLICABLE"}]
    assert of_run(lines, "testRunEnd") == ends


EXPIRED = ExpectedFailure("rng/*", "known", "https://example.org/1", date(2025, 1, 1))


def test_a_clock_that_was_set_back_revives_no_excuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SetBack(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(2024, 1, 1, tzinfo=UTC)

    monkeypatch.setattr("portagpu.suites.conformance.judge.datetime", SetBack)
    assert today([]) == date(2024, 1, 1)
    assert today() > date(2025, 1, 1), "no folder of this machine was changed since"
    found = apply_expected_failures(_result("rng/a", Verdict.FAIL), [EXPIRED])
    assert found.verdict is Verdict.FAIL
    assert "expired on 2025-01-01" in found.reason
    assert "expired" in stale_expected_failures([EXPIRED], {"rng/a": Verdict.FAIL})[0].reason


def test_the_day_is_the_latest_that_is_known(tmp_path: Path) -> None:
    assert abs(today([]) - datetime.now(UTC).date()) <= timedelta(days=1)
    os.utime(tmp_path, (4e9, 4e9))
    assert today([tmp_path, tmp_path / "none"]) == date(2096, 10, 2)
