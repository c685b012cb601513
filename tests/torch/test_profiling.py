"""``pg.profiling``: which steps are recorded, by whom, into which files, and what is refused."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import suppress

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import portagpu as pg
from portagpu.base.errors import OutputError
from portagpu.facts.captures.labels import decode
from portagpu.profiler import Schedule
from tests.support.registry_state import forget


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setenv("PORTAGPU_BACKEND", "cpu")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def train(steps, count):
    for step in range(count):
        with pg.annotate("forward", step=step):
            torch.ones(8).sum()
        steps.step()


def steps_in(path):
    """The labels "step" of the annotated blocks in a trace."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    marks = [
        decode(each["name"])
        for each in json.loads(text)["traceEvents"]
        if each.get("cat") == "user_annotation"
    ]
    return [labels["step"] for name, labels, _ in marks if name == "forward"]


@pytest.mark.parametrize(
    ("schedule", "phases"),
    [
        ({}, "owaalooo"),
        ({"wait": 0, "warmup": 0, "active": 1}, "looooooo"),
        ({"wait": 0, "warmup": 0, "active": 1, "repeat": 0}, "llllllll"),
        ({"wait": 1, "warmup": 0, "active": 2, "repeat": 2, "skip_first": 1}, "ooaloalo"),
    ],
)
def test_the_phase_of_each_step(schedule, phases):
    found = Schedule(**schedule)
    assert "".join(found.phase(step)[0] for step in range(8)) == phases
    first = min(place for place in map(phases.find, "al") if place >= 0)
    assert found.needed == first + 1


def test_the_phases_are_those_of_torchs_own_schedule():
    words = {"NONE": "off", "WARMUP": "warmup", "RECORD": "active", "RECORD_AND_SAVE": "last"}
    for numbers in ((1, 1, 3, 1, 0), (0, 2, 1, 0, 3), (2, 1, 1, 3, 1), (5, 1, 2, 2, 0)):
        names = ("wait", "warmup", "active", "repeat", "skip_first")
        options = dict(zip(names, numbers, strict=True))
        theirs = torch.profiler.schedule(**options)
        ours = Schedule(**options)
        for step in range(40):
            assert ours.phase(step) == words[theirs(step).name], (options, step)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "folder/trace"])
def test_each_cycle_is_one_file_of_this_rank(tmp_path, monkeypatch, name):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pg.profiling(tmp_path / name, wait=1, warmup=1, active=2, repeat=2) as steps:
        train(steps, 9)
    suffix = ".json.gz" if name.endswith("gz") else ".json"
    folder = tmp_path / "folder" if "/" in name else tmp_path
    assert steps.paths == [folder / f"trace.rank3.cycle{number}{suffix}" for number in (0, 1)]
    assert sorted(folder.iterdir()) == steps.paths, "something else was left"
    assert [steps_in(path) for path in steps.paths] == [[2, 3], [6, 7]]
    data = steps.paths[1].read_bytes()
    said = json.loads(gzip.decompress(data) if suffix.endswith("gz") else data)
    assert said["portagpu"] == {"rank": 3, "world_size": 4, "first_step": 6}
    assert said["distributedInfo"] == {"rank": 3, "world_size": 4}, "readers take the rank from it"


def test_in_a_process_group_torch_says_the_rank_once(tmp_path):
    with (
        pg.backend().comm.init(rank=0, world_size=1),
        pg.profiling(tmp_path / "t", wait=0, warmup=0, active=1) as steps,
    ):
        train(steps, 1)
    pairs = []
    json.loads(steps.paths[0].read_text(), object_pairs_hook=pairs.extend)
    assert [name for name, _ in pairs].count("distributedInfo") == 1


def test_one_cycle_has_no_number_and_may_end_with_the_block(tmp_path):
    with pg.profiling(tmp_path / "t.json", wait=0, warmup=0, active=5) as steps:
        train(steps, 2)
    (path,) = steps.paths
    assert path.name == "t.rank0.json"
    assert steps_in(path) == [0, 1]


def test_a_schedule_that_records_nothing_is_an_error(tmp_path):
    words = r"the block ended in step 3, and the schedule records from step 8 on; train longer"
    with (
        pytest.raises(pg.EmptyCapture, match=words),
        pg.profiling(tmp_path / "t", wait=5, warmup=2) as steps,
    ):
        train(steps, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_cycle_without_an_event_is_an_error(tmp_path):
    with (
        pytest.raises(
            pg.EmptyCapture, match=r"no event in the active steps .*t.rank0.json: .* train more"
        ),
        pg.profiling(tmp_path / "t", wait=0, warmup=0, active=1) as steps,
    ):
        steps.step()


def test_a_cycle_without_an_event_of_the_gpu_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        torch.profiler,
        "supported_activities",
        lambda: set(torch.profiler.ProfilerActivity.__members__.values()),
    )
    with (
        pytest.raises(pg.EmptyCapture, match=r"no event of the device in the active steps of"),
        pg.profiling(tmp_path / "t", wait=0, warmup=0, active=1) as steps,
    ):
        steps._device = "cuda"
        train(steps, 1)


def test_an_error_of_the_training_passes_through(tmp_path):
    for count in (0, 1, 3):
        with (
            pytest.raises(KeyError, match="mine"),
            pg.profiling(tmp_path / f"t{count}", wait=1, warmup=0) as steps,
        ):
            train(steps, count)
            raise KeyError("mine")
    assert not torch.autograd._profiler_enabled()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match=r"cannot write the trace to .*file/t.rank0.json: "),
        pg.profiling(tmp_path / "file" / "t", wait=0, warmup=0, active=1) as steps,
    ):
        train(steps, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"active": 0}, "active is a number of steps from 1, not 0"),
        ({"wait": -1}, "wait is a number of steps from 0, not -1"),
        ({"warmup": 1.5}, "warmup is a number of steps from 0, not 1.5"),
        ({"repeat": True}, "repeat is a number of cycles from 0, not True"),
        ({"skip_first": "2"}, "skip_first is a number of steps from 0, not '2'"),
        ({"recorder": "nsys"}, "recorder is 'auto' or 'torch', not 'nsys'"),
    ],
)
def test_what_makes_no_schedule_is_one_line(tmp_path, options, words):
    with pytest.raises(ValueError, match=words) as raised:
        pg.profiling(tmp_path / "t", **options)
    assert "\n" not in str(raised.value)


@pytest.fixture
def tool(monkeypatch):
    """A vendor's profiler that started this process; returns what it received."""
    reported = []
    handle = type(pg.backend())
    monkeypatch.setattr(handle, "attached_profiler", lambda self: "rocprofv3")
    monkeypatch.setattr(handle, "profiler_start", lambda self: reported.append("start"))
    monkeypatch.setattr(handle, "profiler_stop", lambda self: reported.append("stop"))
    return reported


def test_under_a_vendors_profiler_its_regions_follow_the_schedule(tmp_path, tool):
    with pg.profiling(tmp_path / "t", wait=1, warmup=1, active=2, repeat=2) as steps:
        for step in range(9):
            tool.append(step)
            assert not torch.autograd._profiler_enabled()
            steps.step()
    assert tool == [0, 1, "start", 2, 3, "stop", 4, 5, "start", 6, 7, "stop", 8]
    assert (steps.recorder, steps.paths, list(tmp_path.iterdir())) == ("rocprofv3", [], [])


def test_its_region_ends_with_the_block(tmp_path, tool):
    with suppress(KeyError), pg.profiling(tmp_path / "t", wait=0, warmup=0, active=4) as steps:
        steps.step()
        raise KeyError
    assert tool == ["start", "stop"]
    tool.clear()
    with pytest.raises(pg.EmptyCapture, match="nothing was recorded"), pg.profiling("t", wait=9):
        pass
    assert tool == []


def test_torchs_profiler_next_to_a_vendors_is_refused(tmp_path, tool):
    words = (
        "^rocprofv3 records this process, and torch's profiler cannot run at the same time: leave"
    )
    with pytest.raises(ValueError, match=words):
        pg.profiling(tmp_path / "t", recorder="torch")


def test_a_device_that_torch_does_not_record_needs_no_event_of_its_own(tmp_path):
    with pg.profiling(tmp_path / "t", wait=0, warmup=0, active=1) as steps:
        steps._device = "strict"
        train(steps, 1)
    assert steps_in(steps.paths[0]) == [0]


def profiled(folder, name):
    return pg.profiling(folder / name, wait=0, warmup=0, active=2)


def test_another_profiler_of_torch_is_said_where_torch_would_crash(tmp_path):
    words = "^another profiler of torch ran inside this block or around it"
    with (
        pytest.raises(pg.EmptyCapture, match=words),
        torch.profiler.profile(),
        profiled(tmp_path, "inner"),
    ):
        pass
    for inner in (torch.profiler.profile, lambda: profiled(tmp_path, "inner")):
        with pytest.raises(pg.EmptyCapture, match=words), profiled(tmp_path, "outer") as steps:
            with suppress(pg.EmptyCapture), inner():
                pass
            with torch.profiler.profile():
                pass
            steps.step()
    with suppress(KeyError), profiled(tmp_path, "outer"), torch.profiler.profile():
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_step_outside_of_its_block_or_thread_is_refused(tmp_path):
    words = r"^call step\(\) inside the block, and on the thread that entered it"
    steps, raised = profiled(tmp_path, "t"), []
    with pytest.raises(pg.EmptyCapture, match=words):
        steps.step()

    def elsewhere():
        with pytest.raises(pg.EmptyCapture, match=words):
            steps.step()
        raised.append(1)

    with steps:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        train(steps, 2)
    with pytest.raises(pg.EmptyCapture, match=words):
        steps.step()
    assert (raised, steps_in(steps.paths[0])) == ([1], [0, 1])


def test_any_name_that_the_system_takes_is_written_and_no_name_is_refused_at_once(tmp_path):
    for name in ("a%20 <b>\n", "bytes\udcff"):
        with profiled(tmp_path, name) as steps:
            train(steps, 2)
        assert steps_in(tmp_path / f"{name}.rank0.json") == [0, 1]
    with pytest.raises(ValueError, match="empty name"):
        pg.profiling("")
    with (
        pytest.raises(OutputError, match="null byte"),
        profiled(tmp_path, "nul\0") as steps,
    ):
        train(steps, 2)
