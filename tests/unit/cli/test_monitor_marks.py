"""What the table of ``portagpu monitor`` draws, and what its keys do."""

from __future__ import annotations

import io

import pytest

from portagpu.checks.monitor import RunningProcess
from portagpu.checks.monitor.run import ReaderGone
from portagpu.cli._monitor_view import LiveTable, bar, process_lines, sparkline
from tests.support.monitor_samples import a_round, full

rich_console = pytest.importorskip("rich.console")


@pytest.mark.parametrize(
    ("share", "drawn", "plain"),
    [
        (0.0, "········", "--------"),
        (0.5, "████····", "####----"),
        (1.0, "████████", "########"),
        (1 / 64, "▏·······", "--------"),
        (7.0, "████████", "########"),
        (None, "        ", "        "),
    ],
)
def test_a_bar_has_eight_signs(share: float | None, drawn: str, plain: str) -> None:
    assert (bar(share), bar(share, plain=True)) == (drawn, plain)


def test_a_line_of_the_past_has_a_sign_for_each_look() -> None:
    assert sparkline([0, 50, 100, None, 200, -1]) == "▁▅█ █▁"


def test_processes_are_listed_by_their_memory_and_fit() -> None:
    running = tuple(
        RunningProcess(pid=number, user="a" * 40, name="x" * 90, memory_bytes=number << 30)
        for number in range(1, 9)
    )
    lines = list(process_lines([full(0, running=running)], 60, 6))
    assert len(lines) == 6
    assert all(len(line) <= 60 for line in lines)
    assert [line.split()[0] for line in lines[2:]] == ["8", "7", "6", "and"]
    assert lines[2].endswith("…")
    assert list(process_lines([full(0)], 60, 6)) == []


def table() -> LiveTable:
    console = rich_console.Console(file=io.StringIO(), width=120, height=30, force_terminal=True)
    found = LiveTable(console, "every 1 s", 5.0)
    well = full(0, utilization_percent=10.0, throttling=(), recovery=None, name="first")
    found.write(a_round(well, full(1, utilization_percent=90.0, name="second")))
    return found


def rows(found: LiveTable) -> list[str]:
    assert found._last is not None
    return found._table(found._last).plain.splitlines()


def test_the_key_s_sorts_and_f_shows_what_is_not_ok_alone() -> None:
    found = table()
    assert ["first" in rows(found)[2], "second" in rows(found)[3]] == [True, True]
    assert found.press("s")
    assert "sorted by busy" in rows(found)[0]
    assert ["second" in rows(found)[2], "first" in rows(found)[3]] == [True, True]
    assert found.press("f")
    assert not any("first" in row for row in rows(found))
    assert found.press("x"), "another key changes nothing"


def test_the_key_q_ends_it() -> None:
    found = table()
    assert not found.press("q")
    with pytest.raises(ReaderGone):
        found.write(a_round(full(0)))


def test_a_filter_that_leaves_nothing_is_an_empty_table() -> None:
    console = rich_console.Console(file=io.StringIO(), width=80, height=30, force_terminal=True)
    found = LiveTable(console, "every 1 s", 5.0)
    found.write(a_round(full(0, throttling=(), recovery=None)))
    found.press("f")
    assert len(rows(found)) == 2


def test_no_number_cuts_a_state_and_memory_goes_before_the_limit_of_power() -> None:
    fields = {"throttling": (), "recovery": "Reset", "memory_total_bytes": 141 << 30}
    samples = [full(number, name="NVIDIA H200", **fields) for number in range(3)]
    heads = {}
    for width in (36, 80, 120):
        stream = io.StringIO()
        console = rich_console.Console(file=stream, width=width, height=30, force_terminal=True)
        found = LiveTable(console, "every 1 s", 5.0)
        found.write(a_round(*samples))
        _, heads[width], first, *_ = rows(found)
        assert first.startswith("asks for Reset  "), width
        assert max(map(len, rows(found))) <= width
    assert heads[36].split() == ["state", "device", "address"]
    assert " ".join(heads[80].split()) == "state device address busy power heat memory errors"
    assert heads[120].split()[-1] == "clock"


def test_bars_stay_longer_than_words_that_say_nothing_more() -> None:
    samples = [full(number, name="NVIDIA H200", throttling=()) for number in range(2)]
    console = rich_console.Console(file=io.StringIO(), width=120, height=30, force_terminal=True)
    found = LiveTable(console, "every 1 s", 5.0)
    found.write(a_round(*samples))
    _, _, first, *_ = rows(found)
    assert first.count("█") > 8, "two bars"
    assert "3/4 GiB" in first, "not 3 GiB/4 GiB"
    assert len(first) <= 120
