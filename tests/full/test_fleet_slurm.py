"""Fleet runs through a real Slurm that this starts: a controller and six nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import OutputError
from portagpu.reports.fleet import slurm
from portagpu.reports.fleet.measures import slow_of
from portagpu.reports.fleet.record import FleetBusy, FleetRecord, Step, StepState, read_record
from portagpu.reports.fleet.request import FleetOptions, FleetUsageError
from portagpu.reports.fleet.run import FleetProgress, job_name, run
from portagpu.reports.fleet.scheduler import resume
from tests.conftest import ROOT
from tests.support import slurm_cluster
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.slurm_cluster import Cluster

NODE = ROOT / "tests/support/fleet_node.py"


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with slurm_cluster.running() as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster without jobs, all of whose nodes are idle, and which this process asks."""
    monkeypatch.setenv("SLURM_CONF", str(started.conf))
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, map(str, sys.path))))
    started.heal()
    return started


@pytest.fixture
def fleet(cluster: Cluster, request: pytest.FixtureRequest) -> Callable[..., FleetOptions]:
    """Options of a run of the stand-in in a new folder that all nodes see."""
    folder = cluster.shared / request.node.name.replace("[", "-").rstrip("]")

    def options(nodes: str, *words: str, **others: Any) -> FleetOptions:
        return FleetOptions(
            **{
                "what": "bringup",
                "nodes": nodes,
                "folder": folder,
                "program": [sys.executable, str(NODE)],
                "arguments": words,
                "minutes": 2,
                "settle_s": 1.5,
                "poll_s": 0.1,
                **others,
            }
        )

    return options


class Watch(FleetProgress):
    """Calls a function the first time that a step has a state, and keeps every line."""

    def __init__(self, state: StepState, act: Callable[[Step, FleetRecord], object]) -> None:
        self.wanted, self.act, self.notes = state, act, list[str]()
        self.done = False

    def changed(self, step: Step, record: FleetRecord) -> None:
        if step.state is self.wanted and not self.done:
            self.done = True
            self.act(step, record)

    def note(self, text: str) -> None:
        self.notes.append(text)


def steps_of(record: FleetRecord) -> dict[str, Step]:
    return {step.id: step for step in record.steps}


def test_each_node_runs_once_and_the_bad_one_is_named(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    odd = "a b\"c$(touch x);'d"
    options = fleet("m[1-4]", "fail=m3", odd)
    record = run(options).record
    assert record == read_record(options.folder)
    steps = steps_of(record)
    assert list(steps) == ["m1", "m2", "m3", "m4"]
    assert {step.state for step in steps.values()} == {StepState.DONE}
    assert {name: step.verdict for name, step in steps.items()} == {
        "m1": "PASS", "m2": "PASS", "m3": "FAIL", "m4": "PASS",
    }  # fmt: skip
    assert (steps["m3"].gate, steps["m3"].action) == ("links", "isolate")
    assert "3 of 8 links are up" in steps["m3"].reason
    for name, step in steps.items():
        assert step.result == f"{name}/result.json"
        # the node that it was meant for, and the words as they were given
        result = json.loads((options.folder / step.result).read_text())
        assert result["run"]["host"] == name
        words = json.loads((options.folder / name / "words.json").read_text())
        assert words[:2] == ["fail=m3", odd]
    assert record.scheduler["gres"] == "gpu:mi300x:8"
    # nothing was drained: nobody asked for it
    assert cluster.state("m3") in ("idle", "completing")


def test_an_interrupted_run_finds_its_jobs_again(fleet: Callable[..., FleetOptions]) -> None:
    options = fleet("m[1-4]", "sleep=20", at_once=3)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    first = run(options, Watch(StepState.RUNNING, stop))
    assert first.interrupted
    states = [step.state for step in read_record(options.folder).steps]
    assert states.count(StepState.WAITING) == 1
    assert StepState.RUNNING in states
    (options.folder / "go").touch()
    second = run(options)
    assert not second.interrupted
    assert [(step.verdict, step.attempts) for step in second.record.steps] == [("PASS", 1)] * 4
    assert run(options).record.steps == second.record.steps


def test_a_job_whose_number_was_not_kept_is_found(fleet: Callable[..., FleetOptions]) -> None:
    options = fleet("m1", "sleep=20")

    def die(step: Step, record: FleetRecord) -> None:
        # as if the process had been killed between sbatch and the record
        raise MemoryError

    with pytest.raises(MemoryError):
        run(options, Watch(StepState.SUBMITTED, die))
    path = options.folder / "fleet.json"
    document = json.loads(path.read_text())
    document["steps"][0] |= {"state": "waiting", "job": None, "attempts": 0}
    path.write_text(json.dumps(document))
    (options.folder / "go").touch()
    record = run(options).record
    assert len(slurm.jobs(job_name(record))) == 1
    assert record.steps[0].verdict == "PASS"


def test_a_preempted_step_begins_again(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m1", "sleep=60")

    class Preempt(FleetProgress):
        def changed(self, step: Step, record: FleetRecord) -> None:
            if step.state is StepState.RUNNING and step.attempts == 1:
                words = ("-p", "urgent", "-w", "m1", "--exclusive", "-o", "/dev/null")
                cluster.ask("sbatch", *words, "--wrap=sleep 0.2")
            elif step.state is StepState.WAITING:
                assert step.reason == "preempted; it starts again"
                (options.folder / "go").touch()

    (step,) = run(options, Preempt()).record.steps
    assert (step.verdict, step.attempts) == ("PASS", 2)


def test_a_cancelled_step_is_lost_and_tried_again(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m[1-2]", "sleep=60")

    def cancel(step: Step, record: FleetRecord) -> None:
        cluster.ask("scancel", step.job or "")
        cluster.wait_for(step.id, "idle")
        (options.folder / "go").touch()

    record = run(options, Watch(StepState.RUNNING, cancel)).record
    (lost,) = [step for step in record.steps if step.state is StepState.LOST]
    # either of the two ends is seen first: the stand-in does not catch the signal
    assert "CANCELLED" in lost.reason or "stopped" in lost.reason
    again = run(options).record
    assert [step.verdict for step in again.steps] == ["PASS", "PASS"]
    assert steps_of(again)[lost.id].attempts == 2


def test_a_node_that_dies_is_lost_and_the_others_are_not(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m[1-2]", "sleep=60")

    def crash(step: Step, record: FleetRecord) -> None:
        cluster.crash(step.id)
        (options.folder / "go").touch()

    record = run(options, Watch(StepState.RUNNING, crash)).record
    (lost,) = [step for step in record.steps if step.state is StepState.LOST]
    (other,) = [step for step in record.steps if step.state is StepState.DONE]
    assert "NODE_FAIL" in lost.reason or "Not responding" in lost.reason
    assert other.verdict == "PASS"
    # while it is down nothing is submitted to it
    assert "not submitted" in steps_of(run(options).record)[lost.id].reason
    cluster.heal()
    assert {step.verdict for step in run(options).record.steps} == {"PASS"}


def test_a_node_that_never_answers(fleet: Callable[..., FleetOptions], cluster: Cluster) -> None:
    assert cluster.state("gone") == "unknown*"
    record = run(fleet("gone,m1")).record
    steps = steps_of(record)
    assert steps["m1"].verdict == "PASS"
    assert steps["gone"].state is StepState.LOST
    assert steps["gone"].reason.startswith("not submitted: Slurm has gone as unknown*")


def test_a_queue_limit_gives_up_on_a_busy_node(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    cluster.ask("sbatch", "-w", "m2", "--exclusive", "--wrap=sleep 60")
    record = run(fleet("m[1-2]", queue_limit_s=6.0)).record
    assert steps_of(record)["m1"].verdict == "PASS"
    assert "not begun within 6 s in the queue" in steps_of(record)["m2"].reason
    assert all(job.ended for job in slurm.jobs(job_name(record)).values())


@contextlib.contextmanager
def small_disk(place: Path, kib: int) -> Iterator[Path]:
    """A file system of that size at ``place``, and in it a file that fills it."""
    words = ("mount", "-t", "tmpfs", "-o", f"size={kib}k", "portagpu", str(place))
    if subprocess.run(words, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("this user may not mount a small file system")
    try:
        fill(place / "fill")
        yield place / "fill"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=60)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with pytest.raises(OSError, match="No space left"), path.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_a_spool_without_space_is_reported_with_the_reason(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    with small_disk(cluster.folder / "spool/m4", 8):
        record = run(fleet("m[3-4]", queue_limit_s=20.0)).record
    steps = steps_of(record)
    assert steps["m3"].verdict == "PASS"
    assert steps["m4"].state is StepState.LOST
    assert "SlurmdSpoolDir is full" in steps["m4"].reason


def test_a_shared_folder_that_fills_up_is_one_line_and_goes_on(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    place = cluster.folder / "small"
    place.mkdir()
    with small_disk(place, 256) as full:
        options = fleet("m[1-2]", "sleep=60", folder=place / "run")
        with pytest.raises(OutputError, match="No space left on device"):
            run(options)
        assert not (options.folder / "fleet.json").exists()
        full.unlink()

        def no_space(*_: object) -> None:
            fill(full)
            (options.folder / "go").touch()

        with pytest.raises(OutputError, match=r"fleet.json: No space left on device"):
            run(options, Watch(StepState.RUNNING, no_space))
        # what was known before is still there, whole, and no step is a PASS without a result
        assert not [step for step in read_record(options.folder).steps if step.verdict]
        for node in ("m1", "m2"):
            cluster.wait_for(node, "idle")
        full.unlink()
        # the jobs could not say that they ended
        assert {step.state for step in run(options).record.steps} == {StepState.LOST}
        assert [step.verdict for step in run(options).record.steps] == ["PASS", "PASS"]


def test_a_full_spool_is_a_lost_step(fleet: Callable[..., FleetOptions], cluster: Cluster) -> None:
    spool = cluster.folder / "spool/m4"
    moved = spool.rename(spool.with_name("away"))
    spool.write_text("a file where a folder should be takes no script, even of root")
    try:
        record = run(fleet("m[3-4]", queue_limit_s=20.0)).record
    finally:
        spool.unlink()
        moved.rename(spool)
    assert steps_of(record)["m3"].verdict == "PASS"
    assert steps_of(record)["m4"].state is StepState.LOST
    assert steps_of(record)["m4"].reason


def test_results_that_nobody_can_read(fleet: Callable[..., FleetOptions]) -> None:
    steps = steps_of(run(fleet("m[1-3]", "other=m1", "silent=m2")).record)
    assert steps["m1"].state is steps["m2"].state is StepState.LOST
    assert "portagpu.result/9; this version reads portagpu.result/1" in steps["m1"].reason
    assert steps["m2"].reason == "the command left no result and exit code 1: no such device"
    assert steps["m3"].verdict == "PASS"


def test_two_fleets_at_once(fleet: Callable[..., FleetOptions]) -> None:
    one = fleet("m[1-2]", "sleep=1")
    two = fleet("m[1-2]", folder=one.folder.with_name("two-at-once"))
    outcomes: list[FleetRecord] = []
    busy: list[str] = []

    def meanwhile(*_: object) -> None:
        with pytest.raises(FleetBusy, match="another portagpu fleet runs in") as caught:
            run(one)
        busy.append(str(caught.value))
        thread.start()

    thread = threading.Thread(target=lambda: outcomes.append(run(two).record))
    outcomes.append(run(one, Watch(StepState.SUBMITTED, meanwhile)).record)
    thread.join(60)
    assert busy
    assert [step.verdict for record in outcomes for step in record.steps] == ["PASS"] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "nope"}, "Slurm has no partition 'nope'; there are: all, amd, nvidia, urg"),
        ({"nodes": "m[1-2],x[7-8]"}, "Slurm does not know x7, x8"),
        ({"nodes": "h1"}, "not in the partition amd: h1"),
        ({"nodes": "m1,h1", "partition": "all"}, r"different GPUs \(gpu:mi300x:8: m1; gpu:h100:8"),
        ({"nodes": "m1;reboot"}, "not a list of nodes"),
        ({"nodes": "--help"}, "not a list of nodes"),
        ({"nodes": "m[1-"}, "Slurm does not know|not a list of nodes"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, fleet: Callable[..., FleetOptions]
) -> None:
    options = replace(fleet("m1"), **changes)
    with pytest.raises((FleetUsageError, slurm.UnknownNodes), match=message):
        run(options)
    assert not options.folder.exists()


def test_another_run_does_not_go_on_in_the_folder(fleet: Callable[..., FleetOptions]) -> None:
    run(fleet("m1"))
    with pytest.raises(FleetUsageError, match=r"holds another fleet run \(bringup on 1 node\)"):
        run(fleet("m1", "--quick"))


def test_a_request_that_slurm_refuses_leaves_a_record_to_go_on_from(
    fleet: Callable[..., FleetOptions],
) -> None:
    options = fleet("m1", sbatch=["--constraint=nosuch"])
    with pytest.raises(slurm.SlurmError, match=r"sbatch: .*feature"):
        run(options)
    assert run(fleet("m1")).record.steps[0].verdict == "PASS"


def test_a_time_above_the_partitions_limit_does_not_wait_for_ever(
    fleet: Callable[..., FleetOptions],
) -> None:
    record = run(fleet("m1", minutes=600)).record
    assert "would let the job wait for ever: Partition" in record.steps[0].reason


def test_a_controller_that_is_restarted(
    fleet: Callable[..., FleetOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster of its own: the controller forgets which numbers it gave to jobs."""
    with slurm_cluster.running() as own:
        monkeypatch.setenv("SLURM_CONF", str(own.conf))

        def restart(*_: object) -> None:
            own.end("slurmctld")
            threading.Timer(1.0, own.start, ("slurmctld",)).start()

        record = run(fleet("m[1-2]", "sleep=1"), Watch(StepState.RUNNING, restart)).record
    assert {step.verdict for step in record.steps} <= {"PASS", None}
    # a job that the controller did not keep is lost, and never a PASS without a result
    assert all(step.reason for step in record.steps if step.verdict is None)


def test_a_folder_that_nodes_do_not_see(
    fleet: Callable[..., FleetOptions], tmp_path: Path, cluster: Cluster
) -> None:
    options = fleet("m1", "sleep=60")

    def unmount(step: Step, record: FleetRecord) -> None:
        # the job's own folder goes away before it writes: nothing of it ever appears
        (options.folder / "m1").rename(tmp_path / "elsewhere")
        (options.folder / "go").touch()

    record = run(options, Watch(StepState.RUNNING, unmount)).record
    assert "is " + str(options.folder) in record.steps[0].reason
    assert "shared with the node" in record.steps[0].reason


def test_only_what_the_run_drained_is_resumed(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m[1-3]", "fail=m1", drain=True)
    cluster.ask("scontrol", "update", "NodeName=m2", "State=DRAIN", "Reason=disk: ask Ann")
    record = run(options).record
    assert list(record.drained) == ["m1"]
    assert cluster.state("m1").startswith("drain")
    reason = cluster.ask("sinfo", "-h", "-n", "m1", "-p", "amd", "-o", "%E")
    assert reason == record.drained["m1"]
    assert reason.startswith(f"portagpu fleet {record.id}: isolate: links/active")
    # m2 and m4 are others' business, also where they are named
    reported = {each.node: each.text for each in resume(options.folder, ["m1", "m2", "m4"])}
    assert reported == {
        "m1": "resumed",
        "m2": "left alone: this run did not drain it",
        "m4": "left alone: this run did not drain it",
    }
    cluster.wait_for("m1", "idle")
    assert cluster.state("m2") == "drained"
    # the old finding does not drain it again
    assert run(options).record.drained == {"m1": ""}
    assert cluster.state("m1") == "idle"
    (again,) = resume(options.folder, ["m1"])
    assert (again.done, again.text) == (False, "left alone: it was resumed before")


def test_no_other_node_is_tested_in_place_of_one(fleet: Callable[..., FleetOptions]) -> None:
    options = fleet("m[1-2]", "fail=m3", sbatch=["--nodelist=m3"])
    assert [step.verdict for step in run(options).record.steps] == ["PASS", "PASS"]
    for name in ("m1", "m2"):
        result = json.loads((options.folder / name / "result.json").read_text())
        assert result["run"]["host"] == name


def test_a_reason_that_somebody_changed_keeps_the_node_drained(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m1", "fail=m1", drain=True)
    record = run(options).record
    assert list(record.drained) == ["m1"], (record, cluster.log())
    cluster.ask("scontrol", "update", "NodeName=m1", "State=DRAIN", "Reason=ours now")
    (outcome,) = resume(options.folder)
    assert (outcome.done, outcome.text) == (False, "left alone: its reason is now 'ours now'")
    assert cluster.state("m1").startswith("drain")


def test_nothing_is_drained_that_is_not_in_use(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet("m1", "fail=m1", "sleep=60", drain=True)

    def by_hand(*_: object) -> None:
        cluster.ask("scontrol", "update", "NodeName=m1", "State=DRAIN", "Reason=by hand")
        (options.folder / "go").touch()

    watch = Watch(StepState.RUNNING, by_hand)
    record = run(options, watch).record
    assert record.drained == {}
    assert record.steps[0].verdict == "FAIL"
    assert "m1 left alone: Slurm has m1 as" in watch.notes[0]
    assert cluster.ask("sinfo", "-h", "-n", "m1", "-p", "amd", "-o", "%E") == "by hand"


def test_rounds_of_pairs_find_the_slow_node_and_the_slow_link(
    fleet: Callable[..., FleetOptions], cluster: Cluster
) -> None:
    options = fleet(
        "m[1-4],h[1-2]", "slow=h2", "slow=m1+m3", what="collectives", partition="all", gres="",
        rounds=5, group=3, ranks_per_node=2,
    )  # fmt: skip
    record = run(options).record
    pairs = [step for step in record.steps if len(step.nodes) == 2]
    assert len(pairs) == 15
    assert [step.id for step in record.steps[15:]] == ["group-0", "group-1"]
    assert {step.verdict for step in record.steps} == {"PASS"}
    found = {(each.what, each.nodes) for each in slow_of(options.folder)}
    assert found == {("node", ("h2",)), ("link", ("m1", "m3"))}


@pytest.mark.torch
def test_two_nodes_run_a_collective_together(
    fleet: Callable[..., FleetOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real ranks, over Gloo: srun starts them, and they meet through Slurm's variables."""
    pytest.importorskip("torch")
    # both nodes are this machine, and m1 is not a name that it knows
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    options = fleet(
        "m[1-2]", what="collectives", gres="", ranks_per_node=1,
        program=[sys.executable, "-P", "-m", "portagpu"],
    )  # fmt: skip
    (step,) = run(options).record.steps
    assert step.verdict == "PASS", (step, (options.folder / step.id / "job.log").read_text())
    result = json.loads((options.folder / "m1+m2/result.json").read_text())
    checked, *timed = result["results"]
    assert (checked["value"], checked["shape"]["ranks"]) == (0, 2)
    assert [each["id"] for each in timed] == [
        "collectives/all_reduce[2-1MiB]",
        "collectives/all_reduce[2-64MiB]",
    ]
    assert all(each["value"] > 0 for each in timed)


@pytest.mark.torch
def test_a_real_bringup_of_two_nodes(fleet: Callable[..., FleetOptions]) -> None:
    pytest.importorskip("torch")
    options = fleet(
        "m[1-2]", "--only", "environment", program=[sys.executable, "-P", "-m", "portagpu"]
    )
    record = run(options).record
    assert {step.state for step in record.steps} == {StepState.DONE}
    for step in record.steps:
        made = sorted(path.name for path in (options.folder / step.id).iterdir())
        assert made == ["ended", "job.log", "junit.xml", "report.html", "result.json"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("what", "words", "suite"),
    [
        ("conform", ("--only", "rng/seed-repeats"), "conformance"),
        ("bench", ("launch/issue", "--quick"), "performance"),
    ],
)
def test_the_suites_run_on_a_node_as_well(
    what: str, words: tuple[str, ...], suite: str, fleet: Callable[..., FleetOptions]
) -> None:
    pytest.importorskip("torch")
    program = [sys.executable, "-P", "-m", "portagpu"]
    options = fleet("m1", *words, what=what, program=program)
    (step,) = run(options).record.steps
    assert step.state is StepState.DONE, (step, (options.folder / "m1/job.log").read_text())
    result = json.loads((options.folder / "m1/result.json").read_text())
    assert suite in {each["suite"] for each in result["results"]}


def test_no_process_is_left() -> None:
    """The cluster's own end, on a cluster of its own."""
    with slurm_cluster.running() as cluster:
        place = str(cluster.folder)
        begun = cluster.folder / "begun"
        cluster.ask("sbatch", "-w", "m1", f"--wrap=touch {begun}; sleep 600")
        wait_until(begun.exists, cluster.log)
    left = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            left += [each] if place in each.read_text("latin-1") else []
        except OSError:
            continue
    assert not left
    assert not slurm_cluster.holders(place)
