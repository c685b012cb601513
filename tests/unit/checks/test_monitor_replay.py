"""Samples that were written as lines, and read again for ``portagpu monitor --replay``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from portagpu import cli
from portagpu.base.errors import RecordingError
from portagpu.checks.monitor import Event, Happening, JsonLines, RunningProcess, read_rounds
from portagpu.checks.monitor.replay import recorded_round
from portagpu.facts.readings.model import GpuState, Process
from portagpu.machine.inventory import Gpu, Inventory
from tests.support.monitor_samples import a_round, full, sample

if TYPE_CHECKING:
    from portagpu.checks.monitor import Round

PROCESS = RunningProcess(pid=4711, user="jdoe", name="python", memory_bytes=5 << 30)


@pytest.fixture
def rounds(tmp_path: Path) -> tuple[Path, list[Round]]:
    event = Event(event=Happening.STALLED, text="may be stalled", device=None)
    written = [
        a_round(full(running=(PROCESS,)), sample(1), number=0),
        a_round(full(), number=3, events=(event,)),
    ]
    path = tmp_path / "samples.jsonl"
    lines = JsonLines(str(path), pytest.fail)
    for each in written:
        lines.write(each)
    lines.close()
    return path, written


def test_what_was_written_is_read_again(rounds: tuple[Path, list[Round]]) -> None:
    path, written = rounds
    found = list(read_rounds(path))
    assert [replace(each, at_s=0.0) for each in found] == [
        replace(each, at_s=0.0) for each in written
    ]
    assert [each.at_s for each in found] == [0.0, 3.0]


def test_a_last_line_that_was_cut_is_left_out(rounds: tuple[Path, list[Round]]) -> None:
    path, _ = rounds
    path.write_bytes(path.read_bytes()[:-20])
    assert [len(each.samples) for each in read_rounds(path)] == [2, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no sample"),
        ("{}\n", "line 1: not a line of portagpu monitor --json"),
        ("[1]\n", "line 1: not a line"),
        ("words of a program that nobody knows\n", "line 1: not a line"),
        (
            '{"schema": "portagpu.result/1", "time": "2026-01-02", "sequence": 0, "host": ""}\n',
            "re",
        ),
    ],
)
def test_another_file_is_one_line_and_exit_code_2(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=said):
        list(read_rounds(path))
    assert cli.main(["monitor", "--replay", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_value_of_another_type_names_its_line(rounds: tuple[Path, list[Round]]) -> None:
    path, _ = rounds
    first, *rest = path.read_text().splitlines(keepends=True)
    document = json.loads(first) | {"power_w": "much"}
    path.write_text(json.dumps(document) + "\n" + "".join(rest))
    with pytest.raises(RecordingError, match=r"line 1: sample\.power_w"):
        list(read_rounds(path))


def test_without_a_terminal_each_sample_is_a_line_at_once(
    rounds: tuple[Path, list[Round]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = rounds
    assert cli.main(["monitor", "--replay", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 3
    assert "97 % busy" in said.out
    assert "may be stalled" in said.err


TABLE = """\
index, uuid, name, pci.bus_id, memory.used [MiB], memory.total [MiB], power.draw [W], \
utilization.gpu [%], temperature.gpu
0, GPU-11111111-2222-3333-4444-555555555555, NVIDIA L4, 00000000:03:00.0, 512 MiB, 23034 MiB, \
70.50 W, 42 %, 61
"""


def test_a_saved_output_of_a_vendors_tool_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "smi.csv"
    path.write_text(TABLE)
    for place in (path, tmp_path):
        assert cli.main(["monitor", "--replay", str(place)]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("0000:03:00.0 NVIDIA L4: "), "a recording has no time of its own"
        for said in ("42 % busy", "512 MiB/", "70", "61 °C"):
            assert said in line
    assert cli.main(["monitor", "--replay", str(path), "--json", str(tmp_path / "x.jsonl")]) == 2
    assert "has no time of its own" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


def test_a_recording_without_devices_names_the_verb_that_judges_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_text(
        "[    1.000000] Linux version 6.8.0 (a@b)\n[    2.0] mce: [Hardware Error]: x\n"
    )
    assert cli.main(["monitor", "--replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert "lists no devices; portagpu health --replay" in err
    assert err.count("\n") == 1


def test_a_recording_that_was_cut_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "smi.xml"
    path.write_text(
        "<?xml version='1.0' ?>\n<nvidia_smi_log>\n<gpu id='00000000:03:00.0'>\n"
        "<product_name>NVIDIA L4</product_name>\n<fan_speed>3"
    )
    assert cli.main(["monitor", "--replay", str(path)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("0000:03:00.0 NVIDIA L4")
    assert "smi.xml breaks off: there may be more" in said.err


def test_processes_of_a_recording_have_no_names_of_this_machine() -> None:
    own = Process(pid=os.getpid(), memory_bytes=1 << 20)
    gpu = Gpu(vendor="v", name="n", state=GpuState(process_list=(own,)))
    (found,) = recorded_round(Inventory(gpus=(gpu,)), Path("x")).samples
    assert found.running == (RunningProcess(pid=own.pid, memory_bytes=1 << 20),)
