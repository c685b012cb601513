"""How far long work is, in words, and as lines where there is no terminal."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from portagpu.checks.bringup.gates import load_gates, with_load_duration
from portagpu.cli._bringup_view import progress_view, usual_s
from portagpu.cli._fleet_text import StepPace
from portagpu.cli._heartbeat import EVERY_S, Heartbeat, Pace
from portagpu.cli._run_output import Files
from portagpu.reports.fleet.record import FleetRecord, Step, StepState
from portagpu.runs.results.run import Run, read_json
from portagpu.runs.results.verdicts import Verdict
from tests.support.result_samples import gate, passing

if TYPE_CHECKING:
    from pathlib import Path


def test_the_time_left_is_that_of_the_items_so_far() -> None:
    now = [100.0]
    pace = Pace(lambda: now[0])
    pace.begin()
    assert pace.words() == ""
    pace.item_begins("gemm/bf16[4096]", 1, 21)
    assert pace.words() == "1/21 gemm/bf16[4096]", "nothing is known yet"
    now[0] += 30.0
    pace.result_added(gate("a", "b", Verdict.FAIL, reason="it is broken"))
    pace.result_added(gate("a", "c"))
    pace.item_begins("memory/copy", 11, 21)
    assert pace.words() == "11/21 memory/copy, 1 FAIL, about 33 s left"


def test_a_run_of_a_fixed_time_knows_what_is_left() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0], lasts_s=60.0)
    pace.begin()
    pace.item_begins("products on cpu", 2, 9)
    now[0] = 20.0
    assert pace.words() == "2/9 products on cpu, about 40 s left"
    now[0] = 80.0
    assert pace.words() == "2/9 products on cpu", "it is late, and one item says nothing"
    pace.item_begins("products on cpu", 5, 9)
    assert pace.words() == "5/9 products on cpu, about 1 min 40 s left"


def test_items_of_other_lengths_have_no_time_left() -> None:
    pace = Pace(lambda: 0.0, even=False)
    pace.item_begins("Memory", 8, 12)
    assert pace.words() == "8/12 Memory"


def test_a_line_comes_every_ten_seconds_while_there_is_something_to_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = iter(["", "1/3 a", "2/3 b"])
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) > 3

    Heartbeat(lambda: next(words), wait).run()
    assert capsys.readouterr().err == "portagpu: 1/3 a\nportagpu: 2/3 b\n"
    assert set(waited) == {EVERY_S}


def test_nothing_is_printed_after_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = Heartbeat(lambda: "1/1 a")
    heartbeat.start()
    heartbeat.stop()
    assert capsys.readouterr().err == ""


def test_steps_of_a_fleet_have_the_time_left_of_those_that_ended() -> None:
    now = [0.0]
    pace = StepPace(lambda: now[0])
    steps = [Step(id=str(number), nodes=(f"n{number}",)) for number in range(8)]

    def become(number: int, state: StepState) -> None:
        steps[number] = replace(steps[number], state=state, verdict="PASS")
        pace.changed(steps[number])

    def words() -> str:
        nodes = tuple(f"n{number}" for number in range(8))
        record = FleetRecord(id="x", what="bench", started="", nodes=nodes, steps=tuple(steps))
        return pace.words(record)

    # one that an earlier command saw begin has no time
    become(7, StepState.DONE)
    for number in range(4):
        become(number, StepState.RUNNING)
    for number, at in enumerate((8.0, 10.0, 12.0)):
        now[0] = at
        become(number, StepState.DONE)
        assert "left" not in words() or number == 2
    # the fourth is late, and three wait for its place
    assert words() == "4 of 8 steps done (4 PASS), 3 not submitted, 1 running, about 30 s left"
    become(4, StepState.RUNNING)
    now[0] = 14.0
    assert words().endswith("2 not submitted, 2 running, about 18 s left")
    for number in (5, 6):
        become(number, StepState.RUNNING)
    now[0] = 24.0
    for number in (4, 5, 6):
        become(number, StepState.DONE)
    assert words().endswith("7 of 8 steps done (7 PASS), 1 running, 3 has run for 24.0 s")
    become(3, StepState.LOST)
    assert words().endswith("1 lost"), "nothing runs"


def test_items_of_known_lengths_have_the_time_left_by_the_pace_so_far() -> None:
    now = [50.0]
    pace = Pace(lambda: now[0], even=False, usual_s=[1.0, 19.0, 60.0, 20.0])
    pace.begin()
    pace.item_begins("a", 1, 4)
    now[0] += 2.0
    pace.item_begins("b", 2, 4)
    assert pace.words() == "2/4 b", "a hundredth of the work says nothing"
    now[0] += 38.0
    pace.item_begins("c", 3, 4)
    assert pace.words() == "3/4 c, about 2 min 40 s left", "twice as slow as there"
    now[0] += 30.0
    pace.item_begins("c: a step of it", 3, 4)
    assert pace.left_in_words() == "about 2 min 10 s left"
    now[0] += 300.0
    assert pace.left_in_words() == "about 40 s left", "the item takes longer than it should"


def test_every_gate_has_a_usual_time() -> None:
    gates = load_gates()
    assert len(usual_s(gates, "full")) == len(usual_s(gates, "quick")) == len(gates)
    assert usual_s(gates, "none such") == []
    longer = [with_load_duration(gate, 1800.0) for gate in gates]
    assert sum(usual_s(longer, "full")) == pytest.approx(sum(usual_s(gates, "full")) + 1680.0)


def test_gates_that_are_left_out_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Heartbeat, "start", lambda self: None)
    gates = load_gates()
    names = ("environment", "identity", "versions", "memory", "numerics")
    absent = {each.id: "left out" for each in gates if each.id not in names}
    out = StringIO()
    view = progress_view(None, out, Files(None), gates, effort="full", absent=absent)
    view.begin(passing())
    for each in gates:
        view.gate_begins(each)
        said.append(view._pace.words())
    view.result_added(gate("numerics", "a", Verdict.FAIL, reason="it is broken"))
    assert view._pace.words().startswith("5/5 Numerics, 1 FAIL")
    assert [each.partition(" ")[0] for each in dict.fromkeys(said)] == [
        f"{n}/5" for n in range(1, 6)
    ]
    view.end()


def test_a_run_that_is_killed_leaves_its_results_of_ten_seconds_ago(tmp_path: Path) -> None:
    now = [100.0]
    files = Files(str(tmp_path / "run.json"), clock=lambda: now[0])
    whole = passing()
    run = Run(whole.info)
    files.begin(run)
    seen = []
    for result in whole.results[:3]:
        now[0] += 6.0
        run.add(result)
        files.result_added()
        seen.append(len(read_json(tmp_path / "run.json").results))
    assert seen == [0, 2, 2]
    assert read_json(tmp_path / "run.json").info.interrupted
