"""What each test costs: CPU seconds of its own and of its children, and processes started.

A plugin of pytest. Workers of xdist send the numbers with their reports. CPU seconds are printed
and never judged: they differ from machine to machine.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

SHOWN: Final = 10
HEAVY_KIB: Final = 1 << 20
"""Of resident memory: a test with a child above it is marked as heavy."""
STARTS: Final = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"}


@dataclass
class Cost:
    """CPU seconds (user and system) and processes started."""

    own: float = 0.0
    children: float = 0.0
    processes: int = 0

    @classmethod
    def until_now(cls) -> Cost:
        """Of this process and its children, also while they live; of theirs, those that ended."""
        own, children = (
            sum(resource.getrusage(who)[:2])
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return cls(own, children + _of_living_children(), started())

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.own - other.own,
            self.children - other.children,
            self.processes - other.processes,
        )

    @property
    def total(self) -> float:
        """CPU seconds of both."""
        return self.own + self.children


def _of_living_children() -> float:
    """CPU seconds of a rank server, for example, so that they count where they are spent."""
    found = 0.0
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in path.read_text().split():
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


_started = [0]


def _count(event: str, _: tuple[object, ...]) -> None:
    # Python 3.13 announces a Popen twice, the second time as the posix_spawn that it uses
    own = event != "os.posix_spawn" or sys._getframe(1).f_code.co_filename != subprocess.__file__
    if event in STARTS and own:
        _started[0] += 1


def started() -> int:
    """How many processes this one has started so far."""
    return _started[0]


sys.addaudithook(_count)


class Costs:
    """The costs of the tests of a run."""

    def __init__(self) -> None:
        self.of_tests: dict[str, Cost] = {}
        self.heavy: dict[str, int] = {}
        self._largest = 0
        self.collecting = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._before = Cost.until_now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            cost = Cost.until_now() - self._before
            report.cost = [cost.own, cost.children, cost.processes]
            # the kernel keeps the largest of all children, so that a smaller one is not seen
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            if largest > max(self._largest, HEAVY_KIB) and not item.get_closest_marker("heavy"):
                report.heavy = largest
            self._largest = max(self._largest, largest)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if cost := getattr(report, "cost", None):
            self.of_tests[report.nodeid] = Cost(*cost)
        if largest := getattr(report, "heavy", None):
            self.heavy[report.nodeid] = largest

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.of_tests:
            return
        dearest = sorted(self.of_tests.items(), key=lambda each: -each[1].total)
        terminalreporter.section(f"{min(SHOWN, len(dearest))} dearest tests, in CPU seconds")
        for name, cost in dearest[:SHOWN]:
            terminalreporter.write_line(
                f"{cost.total:7.1f} s  {cost.processes:3d} processes  {name}"
            )
        own = sum(each.own for each in self.of_tests.values())
        children = sum(each.children for each in self.of_tests.values())
        processes = sum(each.processes for each in self.of_tests.values())
        terminalreporter.write_line(
            f"{own + children:7.1f} s  all: {own:.1f} s of tests, {children:.1f} s of children, "
            f"{processes:,} processes"
        )
        for name, largest in self.heavy.items():
            terminalreporter.write_line(
                f"{largest / HEAVY_KIB:7.1f} GiB in a child of {name} or of its worker"
            )
        if path := os.environ.get("TEST_COSTS"):
            rows = [
                f"{name}\t{c.own:.3f}\t{c.children:.3f}\t{c.processes}\n" for name, c in dearest
            ]
            Path(path).write_text("".join(rows), encoding="utf-8")
