"""How far long work is, in words, and as lines where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.cli._heartbeat import EVERY_S, Heartbeat, Pace
from portagpu.runs.results.verdicts import Verdict
from tests.support.result_samples import gate

if TYPE_CHECKING:
    import pytest


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
    assert pace.words() == "11/21 memory/copy, 1 FAIL, about 33.0 s left"


def test_a_run_of_a_fixed_time_knows_what_is_left() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0], lasts_s=60.0)
    pace.begin()
    pace.item_begins("products on cpu", 2, 9)
    now[0] = 20.0
    assert pace.words() == "2/9 products on cpu, about 40.0 s left"


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
