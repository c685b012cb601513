"""Streams of readings: libraries that hang, die and lose devices, in real children."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from portagpu.base.errors import BackendNotFound
from portagpu.devices import discovery
from portagpu.facts.readings import stream as module
from portagpu.facts.readings.cpu import SOURCE as CPU
from portagpu.facts.readings.stream import Source, Stream
from portagpu_cuda.plugin import CudaPlugin
from portagpu_rocm.plugin import RocmPlugin
from tests.process.test_gpu_probes import AMDSMI, PYNVML, here, tree
from tests.support.gpu_trees import amd_gpu, nvidia_gpu
from tests.support.processes import descendants
from tests.support.waits import wait_until

NEAR, FAR = "0000:05:00.0", "0000:c6:00.0"
WAIT_S = 60.0

# What the library says is in a file, which the test changes; each start of it is a line of another.
LIBRARY = """
    import json, os, pathlib, sys, time
    FOLDER = pathlib.Path({folder!r})
    with (FOLDER / "starts").open("a") as starts:
        starts.write(str(os.getpid()) + "\\n")
    def plan():
        return json.loads((FOLDER / "plan").read_text())
    AT_START = plan().get("devices", [])
    def sample():
        says = plan()
        for line in says.get("prints", ()): print(line)
        while "hangs" in says:
            time.sleep(0.01)
            says = plan() if says["hangs"] == "for a while" else says
        if "dies" in says: os.abort()
        if "raises" in says: raise RuntimeError(says["raises"])
        if "returns" in says: return says["returns"]
        shown = says.get("devices", [])
        if says.get("counted at start"):
            shown = [pci for pci in shown if pci in AT_START]
        readings = [
            dict(source="lib", vendor="maker", index=index, pci=pci, name="Card",
                 state=dict(power_w=says.get("power", 100) + int(pci[5:7], 16)))
            for index, pci in enumerate(shown)
        ]
        return dict(kind="lib", readings=readings, problems=says.get("problems", []))
"""


class Library:
    """A stand-in for a vendor's library, whose behaviour can be changed while it is open."""

    def __init__(self, folder: Path, stand_in, name: str = "a_library") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.does(devices=[NEAR, FAR])
        stand_in(name, LIBRARY.format(folder=str(self.folder)))
        self.source = Source(name="the library", module=name)

    def does(self, **plan: object) -> None:
        written = self.folder / "next"
        written.write_text(json.dumps(plan))
        written.rename(self.folder / "plan")

    @property
    def starts(self) -> list[int]:
        file = self.folder / "starts"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def library(tmp_path, stand_in):
    return Library(tmp_path, stand_in)


def opened(*sources, **limits):
    """A stream that gives up soon, and starts again at once."""
    quick = {"hang_limit_s": 0.3, "first_pause_s": 0.01, "longest_pause_s": 0.05}
    return Stream(sources, **{**quick, **limits})


def until(stream, holds, limit_s=60.0):
    """The first sample for which ``holds``."""
    found = []

    def came():
        found[:] = [stream.read(limit_s)]
        return holds(found[0])

    wait_until(came, lambda: f"never came: the last sample is {found}")
    return found[0]


def keys(sample):
    return sorted(reading.key for reading in sample.readings)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_library_is_opened_once_and_read_many_times(library):
    with opened(library.source) as stream:
        first = stream.read(WAIT_S)
        library.does(devices=[NEAR, FAR], power=300)
        second = stream.read(WAIT_S)
    assert keys(first) == keys(second) == [NEAR, FAR]
    assert [reading.state.power_w for reading in first.readings] == [105, 298]
    assert [reading.state.power_w for reading in second.readings] == [305, 498]
    assert first.problems == second.problems == ()
    assert first.monotonic_s < second.monotonic_s
    (pid,) = library.starts
    assert is_gone(pid), "the child outlives its stream"


def test_devices_are_distinguished_by_address_when_their_order_changes(library):
    with opened(library.source) as stream:
        stream.read(WAIT_S)
        library.does(devices=[FAR, NEAR])
        sample = stream.read(WAIT_S)
    power = {reading.key: (reading.index, reading.state.power_w) for reading in sample.readings}
    assert power == {NEAR: (1, 105), FAR: (0, 298)}
    assert sample.problems == ()


def test_a_library_that_hangs_is_ended_and_read_again_and_the_others_go_on(
    tmp_path, stand_in, library
):
    other = Library(tmp_path, stand_in, "another_library")
    other.does(devices=["0001:01:00.0"])
    with opened(library.source, other.source) as stream:
        stream.read(WAIT_S)
        library.does(hangs=True)
        sample = until(stream, lambda each: any("started again" in p.text for p in each.problems))
        assert keys(sample) == ["0001:01:00.0"]
        assert {problem.device for problem in sample.problems} == {None, NEAR, FAR}
        assert all("did not answer within 0.3 s" in problem.text for problem in sample.problems)
        library.does(devices=[NEAR, FAR])
        sample = until(stream, lambda each: len(each.readings) == 3)
        assert sample.problems == ()
        first, *later = library.starts
        assert later, "the child that hung was not replaced"
        assert is_gone(first)
        assert len(other.starts) == 1, "the other library was started again too"


def test_a_late_answer_is_that_of_a_later_sample(library):
    with opened(library.source, hang_limit_s=60) as stream:
        stream.read(WAIT_S)
        library.does(hangs="for a while")
        sample = stream.read(0.05)
        assert sample.readings == ()
        assert all("has not answered after" in problem.text for problem in sample.problems)
        library.does(devices=[NEAR])
        assert keys(until(stream, lambda each: each.readings)) == [NEAR]
        assert len(library.starts) == 1


def test_a_library_may_take_longer_to_open_than_to_answer(library):
    library.does(hangs="for a while")
    with opened(library.source) as stream:
        (problem,) = stream.read(0.5).problems
        assert "is still being opened" in problem.text
        library.does(devices=[NEAR])
        assert keys(until(stream, lambda each: each.readings)) == [NEAR]
        assert len(library.starts) == 1, "the limit for an answer was that for the first one"


def test_a_device_that_disappears_is_a_problem_of_its_own_and_comes_back(library):
    with opened(library.source) as stream:
        stream.read(WAIT_S)
        library.does(devices=[FAR])
        sample = stream.read(WAIT_S)
        assert keys(sample) == [FAR]
        (problem,) = sample.problems
        assert problem.device == NEAR
        assert problem.text == f"Card at {NEAR}: the library no longer shows it"
        library.does(devices=[FAR, NEAR])
        sample = until(stream, lambda each: len(each.readings) == 2)
        assert sample.problems == ()


def test_a_device_that_only_a_new_process_sees_comes_back_without_a_gap_for_the_others(library):
    """NVML counts the devices when it is opened."""
    library.does(devices=[NEAR, FAR])
    with opened(library.source) as stream:
        stream.read(WAIT_S)
        library.does(devices=[FAR], **{"counted at start": True})
        # the first child to see the loss, and maybe further ones that look for the device
        assert keys(stream.read(WAIT_S)) == [FAR]

        def seen() -> list[str]:
            found = keys(stream.read(WAIT_S))
            assert FAR in found, "a device that is well was left out while another was looked for"
            return found

        wait_until(lambda: seen() and len(library.starts) >= 2, "no second child looks for it")
        library.does(devices=[NEAR, FAR], **{"counted at start": True})
        wait_until(lambda: seen() == [NEAR, FAR], "the device does not come back")


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ({"dies": True}, "died of SIGABRT"),
        ({"raises": "Driver/library\nversion mismatch"}, "Driver/library version mismatch"),
        ({"returns": 3}, "findings: must be an object with keys"),
        ({"returns": {"kind": "lib", "readings": [{"vendor": 3}]}}, "must be"),
        ({"problems": ["the library is closed"]}, "the library is closed"),
    ],
    ids=["dies", "raises", "a number", "of another form", "nothing but a problem"],
)
def test_a_library_that_fails_is_a_problem_and_is_opened_again(library, does, words):
    with opened(library.source) as stream:
        stream.read(WAIT_S)
        library.does(**does)
        sample = stream.read(WAIT_S)
        assert sample.readings == ()
        assert len(sample.problems) == 3, "one for the source and one for each of its devices"
        assert all(words in problem.text for problem in sample.problems), sample.problems
        assert all("\n" not in problem.text for problem in sample.problems)
        library.does(devices=[NEAR, FAR])
        assert until(stream, lambda each: len(each.readings) == 2).problems == ()


def test_pauses_between_starts_grow_to_the_longest(library, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    feed = module._Feed(library.source, module._Limits(60, 10, 1, 60))
    pauses = []
    for _ in range(8):
        feed._wait_longer()
        pauses.append(feed._start_at - now[0])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_process_that_the_driver_does_not_let_end_is_not_followed_by_another(
    library, monkeypatch
):
    """In an ioctl that never returns it takes no signal: a new one each time would pile up."""
    stuck = [True]
    monkeypatch.setattr(module.Caller, "has_left", lambda _: not stuck[0])
    with opened(library.source) as stream:
        stream.read(WAIT_S)
        library.does(raises="the driver is stuck")
        until(stream, lambda each: any("does not end" in p.text for p in each.problems))
        for _ in range(5):
            stream.read(0.02)
        assert len(library.starts) == 1
        stuck[0] = False
        library.does(devices=[NEAR])
        assert keys(until(stream, lambda each: each.readings)) == [NEAR]


def test_values_that_no_device_has_are_absent(library):
    reading = {"source": "lib", "vendor": "maker", "pci": NEAR, "index": 0}
    state = {"power_w": 4e9, "fan_percent": -1.0, "utilization_percent": 30.0, "energy_j": 1e30}
    library.does(returns={"kind": "lib", "readings": [reading | {"state": state}]})
    with opened(library.source) as stream:
        (found,) = stream.read(WAIT_S).readings
    state = found.state
    assert (state.power_w, state.fan_percent, state.energy_j) == (None, None, None)
    assert state.utilization_percent == 30.0


def test_a_device_that_nothing_names_is_a_problem(library):
    reading = {"source": "lib", "vendor": "maker", "index": 0}
    library.does(returns={"kind": "lib", "readings": [reading]})
    with opened(library.source) as stream:
        sample = stream.read(WAIT_S)
    assert sample.readings == ()
    assert "without PCI address and UUID" in sample.problems[0].text


def test_what_a_library_prints_for_days_is_not_kept(library):
    library.does(devices=[NEAR], prints=["x" * 1000] * 3000)
    with opened(library.source) as stream:
        for _ in range(2):
            assert keys(stream.read(WAIT_S)) == [NEAR]
        (feed,) = stream._feeds
        kept = os.fstat(feed._child._caller._child._output).st_size
    assert kept < 1 << 20, f"{kept} bytes of output are kept"


@pytest.mark.processes(40, "it is started again and again")
def test_starting_again_and_again_leaves_no_descriptor_and_no_process(library):
    def held():
        return len(list(Path("/proc/self/fd").iterdir())), len(descendants(os.getpid()))

    before = held()
    with opened(library.source, longest_pause_s=0.01) as stream:
        library.does(raises="no")
        wait_until(
            lambda: stream.read(WAIT_S) and len(library.starts) >= 10, "it is not started again"
        )
    assert held() == before


def test_a_stream_can_be_opened_again(library):
    stream = opened(library.source)
    for _ in range(2):
        with stream:
            assert keys(stream.read(WAIT_S)) == [NEAR, FAR]
    assert len(library.starts) == 2


# --- the CPU, and the vendors' libraries


def test_the_cpu_is_a_device_of_every_stream():
    with opened(CPU) as stream:
        sample = stream.read(WAIT_S)
        (cpu,) = sample.readings
        assert (cpu.key, cpu.vendor, sample.problems) == ("cpu", "", ())
        assert cpu.memory_bytes > cpu.state.memory_used_bytes > 0
        for name in ("power_w", "utilization_percent"):
            assert getattr(cpu.state, name) is not None or cpu.missing[name], f"{name}: no reason"


def test_nvml_stays_open_and_says_what_changes(stand_in, tmp_path):
    counted = """
import pathlib
FILE = pathlib.Path(__file__).with_name("opened")
def nvmlInit():
    with FILE.open("a") as file: file.write("x")
def nvmlDeviceGetNvLinkState(gpu, link):
    if gpu == "mig" or link > 1: raise NVMLError("Not Supported")
    return 1 - link
def nvmlDeviceGetNvLinkErrorCounter(gpu, link, counter): return 10 * link + counter
def nvmlDeviceGetNvLinkRemotePciInfo(gpu, link): return Struct(busId="00000000:04:00.0")
def nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link): return 0
"""
    stand_in("pynvml", textwrap.dedent(PYNVML) + counted)
    gpus = (nvidia_gpu(0, pci="0000:83:00.0"), nvidia_gpu(1, pci="0000:04:00.0"))
    source = CudaPlugin(tree(tmp_path, *gpus)).sampler()
    with opened(source) as stream:
        samples = [stream.read(WAIT_S) for _ in range(3)]
    assert (tmp_path / "stand-ins/opened").read_text() == "x", "NVML was opened again"
    assert [len(sample.readings) for sample in samples] == [2, 2, 2]
    h200 = samples[-1].readings[0]
    assert (h200.key, h200.uuid, h200.name) == ("0000:83:00.0", "GPU-aa", "NVIDIA H200")
    state = h200.state
    # millijoules and nanoseconds of nvml.h
    assert (state.energy_j, state.throttled_s) == (
        1234.567,
        {"sw_power_cap": 2.5, "hw_thermal_slowdown": 0.0},
    )
    assert (state.utilization_percent, state.memory_utilization_percent) == (0, 7)
    assert (state.fan_percent, state.fan_rpm) == (None, None), "it has no fans of its own"
    assert [(each.pid, each.memory_bytes) for each in state.process_list] == [
        (4711, 5 << 20),
        (4712, None),
    ]
    assert h200.arch is None, "a sample holds what does not change"
    first, second = samples[-1].links
    assert (first.a.pci, first.b.pci, first.up, first.extra) == (
        "0000:83:00.0",
        "0000:04:00.0",
        True,
        {"link": "0"},
    )
    assert (second.up, second.errors) == (
        False,
        {"replay errors": 10, "recovery errors": 11, "crc errors": 12},
    )


def test_amdsmi_stays_open_and_says_what_changes(stand_in, tmp_path):
    more = """
class AmdSmiGpuBlock: UMC, XGMI_WAFL = "umc", "xgmi"
def amdsmi_get_gpu_ecc_count(gpu, block):
    if block == "xgmi": raise RuntimeError("not supported")
    return {"correctable_count": 2, "uncorrectable_count": 0, "deferred_count": 0}
def amdsmi_get_gpu_activity(gpu): return {"gfx_activity": 98, "umc_activity": 41, "mm_activity": 0}
def amdsmi_get_energy_count(gpu):
    return {"power": 1 << 32, "energy_accumulator": 1 << 32, "counter_resolution": 15.3}
def amdsmi_get_gpu_fan_speed(gpu, sensor): raise RuntimeError("not supported")
def amdsmi_get_gpu_process_list(gpu):
    return [{"name": "train", "pid": 99, "mem": 7, "memory_usage": {"vram_mem": 5 << 20}}]
def amdsmi_get_gpu_xgmi_link_status(gpu):
    return {"status": ["X", "U", "D", "N/A"], "total_links": 4}
"""
    stand_in("amdsmi", textwrap.dedent(AMDSMI) + more)
    source = RocmPlugin(tree(tmp_path, amd_gpu(0, pci=NEAR))).sampler()
    with opened(source) as stream:
        sample = stream.read(WAIT_S)
    near = next(reading for reading in sample.readings if reading.key == NEAR)
    state = near.state
    assert (state.utilization_percent, state.memory_utilization_percent) == (98, 41)
    # the counter's unit is stated in microjoules
    assert state.energy_j == pytest.approx((1 << 32) * 15.3e-6)
    assert (state.fan_percent, state.fan_rpm) == (None, None)
    (process,) = state.process_list
    assert (process.pid, process.memory_bytes) == (99, 5 << 20)
    assert near.memory.by_block == {"UMC": (2, 0)}, "a block that states nothing counts nothing"
    links = [link for link in sample.links if link.a.pci == NEAR]
    assert [(link.extra["link"], link.up) for link in links] == [("1", True), ("2", False)]


def test_the_samplers_are_those_of_every_plugin_that_answers(monkeypatch):
    def broken():
        raise RuntimeError("no")

    def unknown(name):
        raise BackendNotFound("it does not load", {name: "no"})

    source = Source(name="the library", module="a_library")
    answers = {"good": lambda: source, "none": lambda: None, "broken": broken, "wrong": lambda: 3}
    monkeypatch.setattr(discovery, "candidates", lambda: dict.fromkeys([*answers, "gone"]))
    monkeypatch.setattr(
        discovery,
        "plugin",
        lambda name: (
            SimpleNamespace(sampler=answers[name], shared=False)
            if name in answers
            else unknown(name)
        ),
    )
    assert discovery.samplers() == (source,)


def test_nothing_is_read_where_the_machine_has_no_such_gpu(tmp_path):
    assert CudaPlugin(here(tmp_path, "rocm")).sampler() is None
