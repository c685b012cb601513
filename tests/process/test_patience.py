"""Limits that do not count the time in which a process was ready to run and had no CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from portagpu.base.patience import PATIENCE, BusyMachine, Patience, Starvation, processes
from tests.support.waits import wait_until

ROOT_PID = 100


@dataclass
class Machine:
    """A clock and a /proc that a test moves: (pid, tid) -> nanoseconds that the thread waited."""

    proc: Path
    now: float = 1000.0
    load: float = 0.0
    cpus: int = 2
    waited: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def patience(self) -> Patience:
        return Patience(
            clock=lambda: self.now,
            proc=self.proc,
            load=lambda: self.load,
            cpus=lambda: self.cpus,
        )

    def supports(self, schedstat: str | None, children: bool) -> None:
        own = self.proc / "thread-self"
        own.mkdir(parents=True)
        if schedstat is not None:
            (own / "schedstat").write_text(schedstat)
        if children:
            (own / "children").write_text("")

    def thread(self, pid: int, tid: int, waited_s: float = 0.0, parent: int = 1) -> None:
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} {pid} {pid} 0")
        (folder / "children").write_text("")
        self.waited[pid, tid] = 0
        self.wait(pid, tid, waited_s)
        above = self.proc / str(parent) / "task" / str(parent) / "children"
        if above.exists() and str(pid) not in above.read_text().split():
            above.write_text(f"{above.read_text()}{pid} ")

    def wait(self, pid: int, tid: int, seconds: float) -> None:
        self.waited[pid, tid] += int(seconds * 1e9)
        file = self.proc / str(pid) / "task" / str(tid) / "schedstat"
        file.write_text(f"5000000 {self.waited[pid, tid]} 17\n")

    def end(self, pid: int, tid: int) -> None:
        folder = self.proc / str(pid) / "task" / str(tid)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


@pytest.fixture(params=[True, False], ids=["children listed", "children found"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    found = Machine(tmp_path / "proc")
    found.supports("70000 50000 2\n", request.param)
    found.thread(ROOT_PID, ROOT_PID, waited_s=40.0)
    return found


def test_a_blocked_process_is_charged_the_wall_time(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 9.5
    assert watch.left_s == pytest.approx(0.5)
    machine.now += 0.5
    assert watch.over
    assert not watch.starved.is_starved
    assert watch.starved.waited_s == 0


def test_a_starved_process_is_charged_what_it_did_not_wait(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    for _ in range(20):
        machine.now += 1.0
        machine.wait(ROOT_PID, ROOT_PID, 0.75)
    assert watch.left_s == pytest.approx(5.0)
    assert watch.starved == Starvation(pytest.approx(20.0), pytest.approx(15.0), 0.0, 2)
    assert watch.starved.is_starved


def test_a_process_that_got_its_cpu_and_then_hangs_is_not_starved(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    for waited_s in [0.9] * 5 + [0.0] * 10:
        assert not watch.over
        machine.now += 1.0
        machine.wait(ROOT_PID, ROOT_PID, waited_s)
    assert watch.over
    assert watch.starved == Starvation(pytest.approx(8.0), 0.0, 0.0, 2)
    assert not watch.starved.is_starved


def test_a_process_that_waits_in_the_end_is_starved(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    for waited_s in [0.0] * 8 + [0.75] * 8:
        machine.now += 1.0
        machine.wait(ROOT_PID, ROOT_PID, waited_s)
        assert not watch.starved.is_starved or machine.now > 1008.0
    assert watch.over
    assert watch.starved == Starvation(pytest.approx(8.0), pytest.approx(6.0), 0.0, 2)
    assert watch.starved.is_starved


def test_a_process_that_always_waits_is_over_after_a_multiple_of_the_limit(
    machine: Machine,
) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    for _ in range(99):
        machine.now += 1.0
        machine.wait(ROOT_PID, ROOT_PID, 1.0)
        assert not watch.over
    machine.now += 1.0
    machine.wait(ROOT_PID, ROOT_PID, 1.0)
    assert watch.over


def test_a_wait_that_linux_states_late_counts_from_its_begin(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    for _ in range(8):
        machine.now += 1.0
        assert not watch.over
    machine.wait(ROOT_PID, ROOT_PID, 8.0)
    machine.now += 1.0
    assert watch.left_s == pytest.approx(9.0)


def test_never_more_is_waited_than_passed(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 1.0
    machine.wait(ROOT_PID, ROOT_PID, 500.0)
    assert watch.left_s == pytest.approx(10.0)
    assert watch.starved.waited_s == pytest.approx(1.0)


def test_the_thread_that_waits_longest_counts_once(machine: Machine) -> None:
    machine.thread(ROOT_PID, 101)
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 4.0
    machine.wait(ROOT_PID, ROOT_PID, 1.0)
    machine.wait(ROOT_PID, 101, 2.0)
    assert watch.left_s == pytest.approx(8.0)


def test_threads_and_processes_may_come_and_go(machine: Machine) -> None:
    machine.thread(ROOT_PID, 101, waited_s=3.0)
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 1.0
    machine.end(ROOT_PID, 101)
    machine.thread(ROOT_PID, 102, waited_s=0.5)
    assert watch.left_s == pytest.approx(9.5)
    # an adopted process has waited before it was one of the tree; no more than a second counts
    machine.thread(200, 200, waited_s=60.0, parent=ROOT_PID)
    machine.now += 1.0
    assert watch.left_s == pytest.approx(9.5)
    machine.thread(300, 300, parent=200)
    machine.now += 1.0
    assert watch.left_s == pytest.approx(8.5)
    machine.now += 1.0
    machine.wait(300, 300, 1.0)
    assert watch.left_s == pytest.approx(8.5)
    machine.end(300, 300)
    machine.end(200, 200)
    machine.now += 1.0
    assert watch.left_s == pytest.approx(7.5)


def test_another_process_does_not_count(machine: Machine) -> None:
    machine.thread(900, 900)
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 4.0
    machine.wait(900, 900, 4.0)
    assert watch.left_s == pytest.approx(6.0)


def test_a_process_that_ended_is_charged_the_wall_time(machine: Machine) -> None:
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.end(ROOT_PID, ROOT_PID)
    machine.now += 4.0
    assert watch.left_s == pytest.approx(6.0)
    assert machine.patience.watch(1.0, 12345).left_s == pytest.approx(1.0)


def test_several_limits_share_a_meter(machine: Machine) -> None:
    meter = machine.patience.meter(ROOT_PID)
    whole, silence = meter.watch(10.0), meter.watch(3.0)
    machine.now += 2.0
    machine.wait(ROOT_PID, ROOT_PID, 1.0)
    assert (whole.left_s, silence.left_s) == (pytest.approx(9.0), pytest.approx(2.0))
    silence.begin_again()
    machine.now += 1.0
    assert (whole.left_s, silence.left_s) == (pytest.approx(8.0), pytest.approx(2.0))
    assert silence.starved.waited_s == 0


@pytest.mark.parametrize("schedstat", [None, "0 0 0\n", "what?"])
def test_where_linux_does_not_say_the_load_stands_in(tmp_path: Path, schedstat: str | None) -> None:
    machine = Machine(tmp_path / "proc", load=8.0)
    machine.supports(schedstat, children=True)
    watch = machine.patience.watch(10.0, ROOT_PID)
    machine.now += 8.0
    assert watch.left_s == pytest.approx(8.0)
    assert watch.starved == Starvation(pytest.approx(8.0), pytest.approx(6.0), 8.0, 2)
    machine.load = 1.5
    machine.now += 8.0
    assert watch.over


def test_waiting_asks_for_the_event_until_it_happens_or_the_limit_is_over(
    machine: Machine,
) -> None:
    asked: list[float] = []

    def happened(limit_s: float) -> bool:
        asked.append(limit_s)
        machine.now += limit_s
        return len(asked) == 3

    assert machine.patience.watch(10.0, ROOT_PID).wait(happened)
    assert asked == [pytest.approx(0.5)] * 3
    asked[:] = [0.0] * 9
    assert not machine.patience.watch(1.25, ROOT_PID).wait(happened)
    assert sum(asked) == pytest.approx(1.25)
    asked.clear()
    assert not machine.patience.watch(0.0, ROOT_PID).wait(happened)
    assert asked == [0.0]


@pytest.mark.parametrize(
    ("waited_s", "starved"), [(0.0, False), (3.9, False), (4.0, True), (40.0, True)]
)
def test_from_a_tenth_on_a_process_is_starved(waited_s: float, starved: bool) -> None:
    assert Starvation(40.0, waited_s, 1.0, 2).is_starved is starved


def test_the_clause_says_load_and_share() -> None:
    assert (
        Starvation(40.0, 24.4, 31.24, 2).clause
        == "load 31.2 on 2 CPUs; waited 61 % of the last 40 s for a CPU"
    )
    assert (
        Starvation(0.0, 0.0, 0.0, 1).clause
        == "load 0.0 on 1 CPU; waited 0 % of the last 0 s for a CPU"
    )


def test_processes_that_ended_are_left_out(tmp_path: Path) -> None:
    for pid, state in ((5, "S"), (6, "Z"), (7, "R")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x y) {state} 1 {pid} 4 0")
    (tmp_path / "8").mkdir()
    (tmp_path / "self").mkdir()
    assert sorted(processes(tmp_path)) == [(5, 1, 4), (7, 1, 4)]


def _begin(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _waits_are_counted() -> bool:
    file = Path("/proc/thread-self/schedstat")
    return file.exists() and file.read_text().split()[0] != "0"


def test_a_real_process_that_is_stopped_uses_up_its_limit() -> None:
    with _begin("print(flush=True); input()") as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            watch = PATIENCE.watch(0.2, child.pid)
            wait_until(lambda: watch.over or not _waits_are_counted(), "the limit is not used up")
            assert watch.starved.wall_s >= 0.1
        finally:
            child.kill()


def test_a_real_process_is_charged_what_it_ran() -> None:
    burn = "import time\nprint(flush=True)\ninput()\nend = time.process_time() + 0.2\n"
    burn += "while time.process_time() < end: pass\nprint(flush=True)\ninput()"
    with _begin(burn) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        # a wait for a CPU that began before would count as one of later
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "it does not wait"
        )
        begun = time.monotonic()  # allowed: both clocks are the same
        watch = PATIENCE.watch(60.0, child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        left_s = watch.left_s
        wall_s = time.monotonic() - begun  # allowed: both clocks are the same
        child.kill()
    # the rest of the wall time is what it waited, which does not count
    assert 60.0 - wall_s <= left_s
    assert left_s <= 60.0 - 0.19 or not _waits_are_counted()


def test_a_problem_says_whether_the_machine_was_busy(machine: Machine) -> None:
    watch = machine.patience.watch(2.0, ROOT_PID)
    machine.now += 2.0
    assert watch.problem == "did not answer within 2 s"
    machine.wait(ROOT_PID, ROOT_PID, 1.0)
    machine.now += 2.0
    machine.load = 9.0
    clause = "load 9.0 on 2 CPUs; waited 50 % of the last 2 s for a CPU"
    assert watch.problem == f"did not answer within 2 s on a busy machine ({clause})"
    assert isinstance(watch.problem, BusyMachine)
