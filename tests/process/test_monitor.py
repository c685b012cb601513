"""``portagpu monitor``: the loop over real child processes, what changes over time, the verb."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from portagpu import cli
from portagpu.checks.monitor import Happening, MonitorOptions, Round, monitor
from portagpu.checks.monitor.run import ReaderGone, _target_limit, to_samples
from portagpu.checks.monitor.sample import Device, Tracker
from portagpu.facts.readings import End, GpuState, Link, Memory, Node, Pcie, Reading
from portagpu.facts.readings.stream import Problem
from tests.support import owned
from tests.support.monitor_samples import Library, a_round, full, sample

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


def kinds(events: Any) -> list[str]:
    return [str(each.event) for each in events]


# --- what only time shows


def test_errors_count_from_the_start_and_survive_a_reset() -> None:
    tracker = Tracker()
    counts = (100, 103, 103, 2)
    found = [
        tracker.follow(float(at), [sample(corrected_errors=count, pcie_replays=9)])
        for at, count in enumerate(counts)
    ]
    assert [dict(samples[0].errors_since_start) for samples, _ in found] == [
        {"corrected": count, "pcie-replay": 0} for count in (0, 3, 3, 5)
    ]
    assert [kinds(events) for _, events in found] == [[], ["errors"], [], ["errors"]]
    assert found[1][1][0].text == "Accel 9 0000:00:00.0: new errors: 3 corrected"


def test_a_look_that_misses_a_link_raises_no_alarm() -> None:
    tracker = Tracker()
    looks = [(18, 100), (17, 90), (18, 100), (18, 104), (17, 90)]
    found = [
        tracker.follow(float(at), [sample(links_up=up, links_down=0, link_errors={"crc": count})])
        for at, (up, count) in enumerate(looks)
    ]
    assert [samples[0].errors_since_start["link"] for samples, _ in found] == [0, 0, 0, 4, 4]


def test_unknown_counters_are_not_zero() -> None:
    samples, _ = Tracker().follow(0.0, [sample()])
    assert samples[0].errors_since_start == {}


def test_a_device_is_gone_after_the_grace_and_back_at_once() -> None:
    tracker = Tracker(grace_s=5)
    both, one = [sample(0), sample(1)], [sample(0)]
    lost = [Problem(source="lib", text="lib no longer shows it", device="0000:01:00.0")]
    said = {at: tracker.follow(at, both if at in (0, 9) else one, lost)[1] for at in range(11)}
    assert {at: kinds(events) for at, events in said.items() if events} == {
        6: ["gone"],
        9: ["back"],
    }
    assert said[6][0].text == "Accel 9 0000:01:00.0: gives no readings (lib no longer shows it)"


def test_missing_devices_are_counted() -> None:
    tracker = Tracker(grace_s=1)
    tracker.follow(0, [sample(0), sample(1)])
    tracker.follow(5, [sample(0)])
    assert tracker.missing == 1
    tracker.follow(6, [sample(0), sample(1)])
    assert tracker.missing == 0


def test_a_device_keeps_its_identity_when_its_library_is_silent() -> None:
    tracker = Tracker()
    tracker.follow(0, [sample(4)])
    samples, events = tracker.follow(1, [sample(4, uuid=None, name=None)])
    assert (samples[0].uuid, samples[0].name, samples[0].key) == ("GPU-4", "Accel 9", "GPU-4")
    assert events == ()


def test_a_uuid_that_is_learnt_later_makes_no_second_device() -> None:
    tracker = Tracker(grace_s=1)
    tracker.follow(0, [sample(4, uuid=None, corrected_errors=1)])
    samples, events = tracker.follow(1, [sample(4, corrected_errors=3)])
    assert samples[0].errors_since_start == {"corrected": 2}
    assert kinds(events) == ["errors"]
    assert tracker.follow(9, [sample(4)])[1] == ()


def test_another_card_at_an_address_is_another_device() -> None:
    tracker = Tracker(grace_s=1)
    tracker.follow(0, [sample(4, corrected_errors=5)])
    samples, events = tracker.follow(9, [sample(4, uuid="GPU-new", corrected_errors=50)])
    assert samples[0].errors_since_start == {"corrected": 0}
    assert kinds(events) == ["back", "gone"]


def test_a_stall_is_an_event_when_it_begins_and_when_it_ends() -> None:
    tracker = Tracker(stall_after_s=20)
    hung = sample(utilization_percent=100, power_w=80, power_limit_w=700)
    free = sample(utilization_percent=100, power_w=600, power_limit_w=700)
    said = {at: tracker.follow(at, [hung if at < 30 else free]) for at in range(60)}
    assert {at: kinds(events) for at, (_, events) in said.items() if events} == {
        20: ["stalled"],
        40: ["stall-ended"],
    }
    text = said[20][1][0].text
    assert text.endswith("may be stalled: 100 % busy at 80 W of 700 W for 20 s")
    assert [samples[0].stalled for samples, _ in said.values()].count(True) == 20


def test_the_targets_limit_stands_in_for_one_that_the_device_does_not_state() -> None:
    limit = {"Accel 9": 700.0}
    tracker = Tracker(stall_after_s=20, limit_of=lambda device: limit[device.name or ""])
    hung = sample(utilization_percent=100, power_w=80)
    assert tracker.follow(0, [hung])[0][0].stalled is False
    assert tracker.follow(20, [hung])[0][0].stalled is True


def test_the_limit_of_a_known_product_is_its_targets() -> None:
    assert _target_limit(Device(vendor="nvidia", name="NVIDIA H100 80GB HBM3")) == 700
    assert _target_limit(Device(vendor="acme", name="Accel 9")) is None


def test_a_source_is_reported_once_when_it_lasts() -> None:
    tracker = Tracker(grace_s=5)
    slow = [Problem(source="lib", text="lib: has not answered after 1 s")]
    said = [
        kinds(tracker.follow(at, [sample()], slow if 2 <= at < 4 or 10 <= at < 20 else [])[1])
        for at in range(30)
    ]
    assert {at: each for at, each in enumerate(said) if each} == {
        16: ["problem"],
        20: ["problem-ended"],
    }


def test_what_is_wrong_at_the_start_is_reported_at_once() -> None:
    wrong = [Problem(source="lib", text="lib: is not installed")]
    assert kinds(Tracker().follow(0, [], wrong)[1]) == ["problem"]


def test_a_reading_becomes_a_sample() -> None:
    reading = Reading(
        source="lib",
        vendor="acme",
        pci="0000:01:00.0",
        uuid="GPU-1",
        name="Accel 9",
        memory_bytes=1 << 34,
        pcie=Pcie(generation=5, width=16, replays=3),
        memory=Memory(corrected=1, remapped_rows={"correctable": 2}),
        state=GpuState(power_w=1.5, throttling=(), temperatures_c={"gpu": 30}),
    )
    links = [
        Link(
            source="lib",
            a=End(Node.GPU, "0", "0000:01:00.0"),
            b=End(Node.GPU, "1"),
            kind="x",
            **own,
        )
        for own in ({"up": True, "errors": {"crc": 2}}, {"up": False, "errors": {"crc": 3}})
    ]
    found, cpu = to_samples([reading, Reading(source="host", vendor="", name="Xeon")], links)
    assert (found.kind, found.pcie_lanes, found.pcie_replays) == ("gpu", 16, 3)
    assert (found.corrected_errors, found.uncorrected_errors) == (1, None)
    assert (found.power_w, found.throttling, found.memory_total_bytes) == (1.5, (), 1 << 34)
    assert (found.links_up, found.links_down, found.link_errors) == (1, 1, {"crc": 5})
    assert (cpu.kind, cpu.key, cpu.links_up) == ("cpu", "cpu Xeon", None)


# --- the loop


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Library]:
    return lambda name: Library(tmp_path, monkeypatch, name)


def watch(
    options: MonitorOptions, *libraries: Library, each: Callable[[Round], None] = lambda _: None
) -> list[Round]:
    rounds: list[Round] = []

    def output(one: Round) -> None:
        rounds.append(one)
        each(one)

    monitor(options, [output], sources=[each.source for each in libraries])
    return rounds


def test_all_devices_are_sampled_until_the_count(library: Callable[[str], Library]) -> None:
    one, two = library("lib_one"), library("lib_two")
    one.obey((0, 1), power_w=100.0)
    two.obey((2,), power_w=200.0)
    rounds = watch(MonitorOptions(interval_s=0.5, count=2), one, two)
    assert [each.power_w for one in rounds for each in one.samples] == [100, 100, 200] * 2
    assert [each.number for each in rounds] == sorted({each.number for each in rounds})


def test_a_library_that_hangs_costs_its_own_devices_alone(
    library: Callable[[str], Library],
) -> None:
    hanging, good = library("lib_hangs"), library("lib_good")
    hanging.obey((0,))
    good.obey((1,))
    alone = []

    def hang(each: Round) -> None:
        hanging.obey((0,), sleep_s=600)
        if [one.pci for one in each.samples] == ["0000:01:00.0"]:
            alone.append(each)
            if len(alone) == 3:
                raise ReaderGone

    first = watch(MonitorOptions(interval_s=0.2, count=100), hanging, good, each=hang)[0]
    assert len(first.samples) == 2
    assert len(alone) == 3
    assert any("lib_hangs" in text for text in alone[-1].problems)


def test_a_device_that_vanishes_comes_back(library: Callable[[str], Library]) -> None:
    one = library("lib_vanishes")
    counts = [2]

    def orders(each: Round) -> None:
        if len(each.samples) != counts[-1]:
            counts.append(len(each.samples))
        if counts == [2]:
            one.obey((1,))
        elif counts[-1] == 1:
            one.obey((0, 1))
        elif counts[-1] == 2:
            raise ReaderGone

    watch(MonitorOptions(interval_s=0.2, count=100), one, each=orders)
    assert 1 in counts
    assert counts[-1] == 2


def test_intervals_follow_the_clock_that_never_steps(
    library: Callable[[str], Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the wall clock is set back by a day in the middle
    steps = iter([0, 0, -86400, -86400, -86400])
    stepping = SimpleNamespace(
        time=lambda: time.time() + next(steps), monotonic=time.monotonic
    )  # allowed: a clock that steps
    monkeypatch.setattr("portagpu.facts.readings.stream.time", stepping)
    rounds = watch(MonitorOptions(interval_s=0.1, count=5), library("lib_clock"))
    assert rounds[2].time < rounds[1].time, "stamps are of the wall clock"
    assert [each.at_s for each in rounds] == sorted(each.at_s for each in rounds)


def test_what_takes_too_long_is_left_out_and_not_made_up_for(
    library: Callable[[str], Library],
) -> None:
    one = library("lib_slow_output")
    slow = iter([0.0, 0.35, 0.0, 0.0])
    rounds = watch(
        MonitorOptions(interval_s=0.1, count=4),
        one,
        each=lambda _: time.sleep(next(slow)),  # allowed: it is slow
    )
    numbers = [each.number for each in rounds]
    assert numbers[2] - numbers[1] >= 3


def test_nobody_is_left_running(library: Callable[[str], Library]) -> None:
    one = library("lib_children")
    before = owned.children()
    watch(MonitorOptions(interval_s=0.1, count=2), one)
    assert owned.children() <= before


# --- the verb


@pytest.fixture
def devices(library: Callable[[str], Library], monkeypatch: pytest.MonkeyPatch) -> Library:
    """The verb's machine has the GPUs of one made-up library, and nothing else."""
    one = library("lib_verb")
    one.obey((0, 1), power_w=100.0, power_limit_w=700.0, utilization_percent=50.0)
    monkeypatch.setattr("portagpu.checks.monitor.run.samplers", lambda: (one.source,))
    return one


def test_without_a_terminal_each_sample_is_a_line(
    devices: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["monitor", "--count", "2", "--interval", "0.5"]) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith(" 0000:00:00.0 Accel 9: 50 % busy, 100/700 W")
    assert err == ""


def test_json_to_standard_output_leaves_text_to_standard_error(
    devices: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["monitor", "--count", "2", "--interval", "0.5", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    documents = [json.loads(line) for line in out.splitlines()]
    assert [each["pci"] for each in documents] == ["0000:00:00.0", "0000:01:00.0"] * 2
    assert err == ""


def test_a_file_and_an_endpoint_can_be_combined(
    devices: Library,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra 'monitor'")
    bodies: list[bytes] = []
    from portagpu.checks.monitor import Endpoint

    class Scraped(Endpoint):
        def write(self, each: Round) -> None:
            super().write(each)
            with urllib.request.urlopen(self.url, timeout=60) as answer:  # noqa: S310
                bodies.append(answer.read())

    monkeypatch.setattr("portagpu.checks.monitor.endpoint.Endpoint", Scraped)
    path = tmp_path / "samples.jsonl"
    words = ["monitor", "--count", "2", "--interval", "0.5", "--serve", "0", "--json", str(path)]
    assert cli.main(words) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("portagpu: metrics: http://127.0.0.1:")
    assert len(path.read_text().splitlines()) == 4
    assert b'hw_power_watts{host="' in bodies[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "0.01"], "0.01 is not in the range 0.1<=x<=86400.0"),
        (["--interval", "nan"], "nan is not a finite number"),
        (["--interval", "1e12"], "1000000000000.0 is not in the range"),
        (["--count", "0"], "0 is not in the range x>=1"),
        (["--duration", "-1"], "-1.0 is not in the range x>0"),
        (["--serve", "99999"], "'99999' is neither a port nor HOST:PORT"),
        (["--max-bytes", "1M"], "--max-bytes is the size of a file: add --json FILE"),
        (["--json", "/proc/none/x.jsonl"], "/proc/none/x.jsonl"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["monitor", *words]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_folder_is_not_a_file_for_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["monitor", "--json", str(tmp_path)]) == 2
    assert str(tmp_path) in capfd.readouterr().err


def test_the_dashboard_is_written_and_nothing_else_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dashboard.json"
    assert cli.main(["monitor", "--dashboard", str(path)]) == 0
    assert json.loads(path.read_text())["title"] == "PortaGPU: devices"
    assert capfd.readouterr().out.startswith(f"{path}: import it in Grafana")


def _start(*words: str, **files: Any) -> subprocess.Popen[bytes]:
    environment = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'backends'}",
        "PATH": os.environ.get("PATH", ""),
        "TERM": "xterm-256color",
        "COLUMNS": "120",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "portagpu", "monitor", *words],
        env=environment,
        **{"stderr": subprocess.PIPE, **files},
    )


def test_a_terminal_shows_a_table() -> None:
    leader, follower = pty.openpty()
    child = _start("--interval", "0.1", "--count", "3", stdout=follower, stderr=follower)
    os.close(follower)
    output = b""
    try:
        while chunk := os.read(leader, 65536):
            output += chunk
    except OSError:
        pass  # Linux reports the end of a pseudo-terminal as an I/O error
    finally:
        os.close(leader)
    assert child.wait(timeout=60) == 0, output
    assert b"device" in output
    assert b"busy" in output


def test_keys_of_a_terminal_sort_filter_and_end_it() -> None:
    child, leader = pty.fork()
    if child == 0:
        words = [sys.executable, "-m", "portagpu", "monitor", "--interval", "0.1"]
        path = f"{ROOT}:{ROOT / 'backends'}"
        variables = {"PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "120"}
        os.execve(words[0], words, variables)  # noqa: S606 - in the forked child
    output = b""
    try:
        for word, typed in ((b"q quit", b"s"), (b"sorted by busy", b"f"), (b"not ok alone", b"q")):
            while word not in output:
                output += os.read(leader, 65536)
            os.write(leader, typed)
        with contextlib.suppress(OSError):
            while os.read(leader, 65536):
                pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL if b"not ok alone" not in output else signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        os.close(leader)
    assert os.waitstatus_to_exitcode(status) == 0, output


def test_the_table_shows_what_matters() -> None:
    pytest.importorskip("rich")
    import io

    from rich.console import Console

    from portagpu.cli._monitor_view import LiveTable

    stream = io.StringIO()
    console = Console(file=stream, width=110, force_terminal=True, color_system=None)
    table = LiveTable(console, "every 1 s", 5)
    with table:
        stalled = full(1, stalled=True, throttling=(), name="Accel\x1b[31m 9")
        table.write(a_round(full(0), stalled))
        table.say("one line above")
    text = stream.getvalue()
    for part in (
        "97 %",
        "512/700 W",
        "72 °C",
        "1980 MHz",
        "power cap",
        "stalled?",
        "one line above",
    ):
        assert part in text
    assert "\x1b[31m" not in text, "names of devices cannot colour the terminal"


SLOWED = ("hw_thermal_slowdown", "sw_power_cap")
PRODUCTS = {
    "nvidia": ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H20", "NVIDIA A10"),
    "amd": ("AMD Instinct MI300X VF", "AMD Instinct MI325X", "AMD Radeon PRO W7900 Dual Slot"),
}


@pytest.mark.parametrize("vendor", PRODUCTS)
@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_name_is_cut_to_that_of_another_product(vendor: str, width: int) -> None:
    pytest.importorskip("rich")
    from portagpu.cli._monitor_view import _aligned, _state

    names = PRODUCTS[vendor]
    samples = [
        full(
            number,
            name=name,
            vendor=vendor,
            pci=f"0000:{number:02x}:00.0",
            throttling=() if number % 2 else SLOWED,
            stalled=number == 1,
            recovery=None,
        )
        for number, name in enumerate(names)
    ]
    states, styles = zip(*(_state(each, None) for each in samples), strict=True)
    _, head, *rows = _aligned("title", samples, states, styles, width).plain.splitlines()
    assert len(rows) == len(names)
    for row, name, each in zip(rows, names, samples, strict=True):
        if width >= 60:
            assert len(row) <= width
        shown = row[head.index("device") : head.index("address")].strip()
        whole = {name, name.partition(" ")[2]}
        assert shown in whole or any(
            shown.endswith("…") and long.startswith(shown[:-1]) for long in whole
        )
        if 80 <= width <= 100:
            assert ("throttling" in row) == bool(each.throttling)
            assert ("stalled?" in row) == bool(each.stalled)
        if width == 200:
            assert name in row
            assert ", ".join(each.throttling or ()) in row
    if width >= 80:
        of_names = slice(head.index("device"), head.index("address"))
        assert len({row[of_names] for row in rows}) == len(names)
    assert head.startswith("state ")


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"throttling": ()}, "ok"),
        ({"throttling": None}, "-"),
        ({"throttling": (), "stalled": True}, "stalled?"),
    ],
)
def test_a_device_is_ok_only_if_its_source_says_what_slows_it(
    values: dict[str, Any], state: str
) -> None:
    from portagpu.cli._monitor_view import _state

    assert _state(full(0, **{"recovery": None, **values}), None)[0] == (state, state)


def test_a_long_state_and_a_uuid_are_cut_with_a_mark() -> None:
    pytest.importorskip("rich")
    from portagpu.cli._monitor_view import _aligned, _state

    names = ("NVIDIA H200 MIG 1g.18gb", "an accelerator of a name that is longer than any other")
    samples = [
        full(0, name=names[0], pci=None, uuid="MIG-00000000-0000-0000-0000-000000000001"),
        full(1, name=names[1], error="the driver does not answer: " + "reason " * 20),
    ]
    states, styles = zip(*(_state(each, None) for each in samples), strict=True)
    for width in (60, 80, 100, 120, 160):
        _, head, *rows = _aligned("title", samples, states, styles, width).plain.splitlines()
        assert all(len(row) <= width for row in rows)
        assert "longer than any other" not in rows[1]
        assert rows[1][: head.index("device")].rstrip().endswith("…")
        assert rows[1][head.index("device") : head.index("address")].rstrip().endswith("…")


def test_every_happening_is_in_the_page() -> None:
    page = (ROOT / "docs/monitor.md").read_text("utf-8")
    for happening in Happening:
        assert f"`{happening}`" in page
