"""``conform -x`` for real: what was not begun is not judged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import PortagpuError
from portagpu.base.patience import Limits
from portagpu.runs.results.run import read_json
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.conformance import ConformOptions, Selection, conform
from tests.support.case_files import Recorder, write_cases

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_what_was_not_begun_when_the_run_ends_is_inconclusive() -> None:
    pytest.importorskip("torch")
    recorder = Recorder()
    recorder.ended = lambda: "not begun, because it is late" if recorder.results else ""
    options = ConformOptions(backend="cpu", selection=Selection(only=("rng/seed-*",)))
    found = conform(options, recorder).results
    assert len(found) > 1
    late = "not begun, because it is late"
    assert [each.reason for each in found[1:]] == [late] * (len(found) - 1)
    assert {each.verdict for each in found[1:]} == {Verdict.INCONCLUSIVE}


def test_nothing_begins_after_the_first_failure(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = """
    @case("rng/a", spec="Passes.")
    def test_a(gpu): pass
    @case("rng/b", spec="Fails.")
    def test_b(gpu): assert False, "no"
    @case("rng/c", spec="Passes.")
    def test_c(gpu): pass
    """
    options = ConformOptions(backend="cpu", folder=write_cases(tmp_path / "cases", text))
    passed, failed, third = conform(options).results
    assert (failed.verdict, third.verdict) == (Verdict.FAIL, Verdict.PASS)
    passed, failed, third = conform(replace(options, exit_first=True)).results
    assert (passed.verdict, failed.verdict) == (Verdict.PASS, Verdict.FAIL)
    assert third.verdict is Verdict.INCONCLUSIVE
    assert third.reason == "not begun, because rng/b failed (-x)"


FORGING = """
from pathlib import Path
from portagpu.suites.conformance.fixtures import SESSION, Session

MARK = Path(__file__).with_name("mark")
send = Session.send

def after(kind, act):
    def sending(self, **message):
        send(self, **message)
        if message["event"] == kind: act()
    Session.send = sending

def die(): os.kill(os.getpid(), signal.SIGKILL)

def hang(): time.sleep(600)

{start}

@case("rng/a", spec="Does it.")
def test_a(gpu, request):
    channel = request.config.stash[SESSION].channel
    if not MARK.exists():
        MARK.mkdir()
        {act}

@case("rng/b", spec="Is fine.")
def test_b(gpu): pass

@case("rng/c", spec="Is fine.")
def test_c(gpu): pass
"""


def outcomes(folder: Path, act: str = "pass", start: str = "") -> dict[str, tuple[str, str]]:
    """The verdicts and reasons of a suite that forges something."""
    text = FORGING.format(act=act, start=start)
    found = conform(ConformOptions(backend="cpu", folder=write_cases(folder, text))).results
    assert all(each.evidence == () for each in found if "before it began" in each.reason)
    return {each.id: (str(each.verdict), each.reason) for each in found}


PASSED = ("PASS", "")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("die", "died of SIGKILL"),
        ("lambda: os._exit(0)", "ended with status 0"),
    ],
)
def test_the_case_that_was_next_when_the_suite_ended_is_named(
    tmp_path: Path, what: str, said: str
) -> None:
    pytest.importorskip("torch")
    found = outcomes(tmp_path, f"after('result', {what})")
    assert found["rng/a"] == found["rng/c"] == PASSED
    verdict, reason = found["rng/b"]
    assert verdict == "ERROR"
    assert reason.startswith(f"the suite's process {said}")
    assert reason.endswith(" before it began")
    assert len(found) == 3


@pytest.mark.usefixtures("quiet_machine")
def test_a_suite_that_hangs_between_two_cases_names_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(
        "portagpu.suites.conformance.runner.LIMITS", Limits(start_s=20.0)
    )  # allowed: time without a CPU does not count
    found = outcomes(tmp_path, "after('result', hang)")
    assert found["rng/a"] == found["rng/c"] == PASSED
    said = "the suite's process did not go on within 20 s and stood in hang (test_rng.py:"
    assert found["rng/b"][0] == "ERROR"
    assert found["rng/b"][1].startswith(said)


def test_a_suite_that_ends_before_any_case_is_not_started_for_each(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = outcomes(tmp_path, start="after('machine', die)")
    died = "the suite's process died of SIGKILL before"
    assert found["rng/a"] == ("ERROR", f"{died} it began")
    late = ("INCONCLUSIVE", f"not begun, because {died} any case")
    assert found["rng/b"] == found["rng/c"] == late


def test_what_was_judged_stays_when_the_device_does_not_open_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    gone = (
        "def gone(self): raise OSError('the device is gone')\nif MARK.exists(): Session.device = "
    )
    found = outcomes(tmp_path, "die()", start=f"{gone}gone")
    assert found["rng/a"] == ("ERROR", "the process died of SIGKILL")
    late = "not begun, because the device cannot be opened: OSError: the device is gone"
    assert found["rng/b"] == found["rng/c"] == ("INCONCLUSIVE", late)


UNRULY = """
def number(rank): return os.getcwd()

@case("rng/a", spec="Prints.")
def test_a(gpu):
    os.write(1, b'{"event": "done"}\\n')
    os.write(2, b"noise\\xff\\n")
    print('{"event": "result", "id": "rng/a"}', flush=True)

@case("rng/b", spec="Exits.")
def test_b(gpu): os._exit(0)

@case("rng/c", spec="Moves.")
def test_c(gpu, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

@case("rng/d", spec="Moves and fails.")
def test_d(gpu, tmp_path):
    os.chdir(tmp_path)
    assert False, "it does not hold"

@case("rng/e", spec="Is at home.", capability="collectives")
def test_e(gpu, world): assert [os.getcwd()] == world(1, number) == [HOME]

@case("rng/f", spec="Closes.")
def test_f(gpu): os.closerange(3, 1000)

@case("rng/g", spec="Is fine.")
def test_g(gpu): pass
"""


def test_what_a_library_does_to_the_process_is_reported_and_harms_no_other_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    folder = write_cases(tmp_path / "cases", f"HOME = {str(tmp_path)!r}\n{UNRULY}")
    run = conform(ConformOptions(backend="cpu", folder=folder))
    found = {each.id: each for each in run.results}
    assert {name: (str(each.verdict), each.reason) for name, each in found.items()} == {
        "rng/a": PASSED,
        "rng/b": ("ERROR", "the process ended with status 0"),
        "rng/c": PASSED,
        "rng/d": ("FAIL", "it does not hold"),
        "rng/e": PASSED,
        "rng/f": ("ERROR", "the process ended with status 1"),
        "rng/g": PASSED,
    }
    moved = ["it changed the working folder, which was then changed back"]
    noted = {name: each.extra["observed"] for name, each in found.items() if len(each.extra) > 1}
    assert noted == {"rng/c": moved, "rng/d": moved}
    assert read_json(run.write_json("result.json")) == run


GOOD = {"reason": "", "duration_s": 0, "observed": [], "shared_world": None, "no_world": False}


@pytest.mark.parametrize(
    "event",
    [
        {"other": 1},
        {"event": "wonder"},
        {"event": "start"},
        {"event": "start", "id": "rng/a"},
        {"event": "start", "id": "rng/none"},
        {"event": "start", "id": ["rng/b"]},
        {"event": "result", "id": "rng/b", "kind": "passed", **GOOD},
        {"event": "result", "id": "rng/a"},
        {"event": "result", "id": "rng/a", **GOOD, "kind": "wonder"},
        {"event": "result", "id": "rng/a", **GOOD, "kind": "failed"},
        {"event": "result", "id": "rng/a", **GOOD, "kind": "passed", "duration_s": -1},
        {"event": "result", "id": "rng/a", **GOOD, "kind": "passed", "observed": [3]},
        {"event": "result", "id": "rng/a", **GOOD, "kind": "passed", "shared_world": {"state": 3}},
        {"event": "collected", "cases": [], "problems": []},
    ],
    ids=str,
)
def test_a_forged_event_ends_the_case_and_no_other(tmp_path: Path, event: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    found = outcomes(tmp_path, f"channel.send({event!r}); hang()")
    verdict, reason = found.pop("rng/a")
    assert verdict == "ERROR"
    assert reason.startswith("the process broke: ")
    assert found == {"rng/b": PASSED, "rng/c": PASSED}


@pytest.mark.parametrize("kind", ["collected", "machine"])
def test_a_forged_start_is_one_line(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    start = "Session.send = lambda self, **given: send(self, event=given['event'], machine=3)"
    if kind == "machine":
        start = f"after('collected', lambda: exec({start!r}, globals()))"
    with pytest.raises(PortagpuError) as caught:
        outcomes(tmp_path, start=start)
    assert str(caught.value).isprintable()


def test_help_names_both_options() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "portagpu", "conform", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-x, --exitfirst" in shown
    assert "-v, --verbose" in shown
