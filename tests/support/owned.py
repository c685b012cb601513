"""What tests may start, and what they must end: budgets of processes, and no process left.

A plugin of pytest. Processes that a fixture of a module or session starts are that fixture's: they
count for no test, and may be there between tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.costs import started

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

BUDGETS: Final = {
    "unit": 0,
    "torch": 0,
    "vendor_texts": 2,
    "ranks": 4,
    "process": 8,
    "pages": 8,
}
"""Folder -> the processes that one of its tests may start, not those that these start."""
MARKERS: Final = (
    "processes(count, reason): may start this many processes, instead of its folder's budget",
    "heavy: takes above 1 GiB of memory: one such test runs at a time, on all workers",
)
_GRACE_S: Final = 10.0
"""For what ends by itself, such as a child whose pipe was closed."""
_HELPERS: Final = (
    b"multiprocessing.resource_tracker",
    b"multiprocessing.forkserver",
    b"torch_shm_manager",
)
"""Python and torch keep these until the process ends."""

_kept: set[int] = set()
"""Processes that outlive tests on purpose."""
_servers: list[Any] = []
"""Rank servers of fixtures of modules and of the session: they start at their first use."""
_not_counted = [0]


def children() -> set[int]:
    """The processes that this one started and that have not ended; others' are not looked at."""
    try:
        # one call where there is none
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[int] = set()
    for each in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (each / "children").read_text().split()))
    return {pid for pid in found if _runs(pid)}


def below(pid: int) -> set[int]:
    """A process and all that it started, as far as their parents are there."""
    found = {pid}
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, each.read_text().split()):
                found |= below(child)
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    except OSError:
        return b""


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What is started in it outlives the test, and counts for none."""
    count, before = counted(), children()
    yield
    _kept.update(children() - before)
    _not_counted[0] += counted() - count


def counted() -> int:
    """How many processes tests have started so far."""
    return started() - _not_counted[0]


def _known() -> set[int]:
    servers = (getattr(each, "_child", None) for each in _servers)
    return _kept | {each.pid for each in servers if each is not None}


def left_over(before: set[int]) -> list[str]:
    """End what was not there before, with all that it started; what it was, one line each."""
    # allowed: it is the time that is lost where a test leaves a process
    until = time.monotonic() + _GRACE_S
    while found := children() - before - _known():
        found = {pid for pid in found if not any(name in _command(pid) for name in _HELPERS)}
        # allowed: the same
        if not found or time.monotonic() > until:
            break
        time.sleep(0.01)  # allowed: the same
    left = []
    for pid in sorted(found):
        for each in below(pid):
            left.append(f"{each}: {_command(each).decode(errors='replace')[:200]}")
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)
    return left


class Owned:
    """Fails a test at its end for what it started too much, and for what it left."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with kept():
            value = yield
        if hasattr(value, "_child") and hasattr(value, "run"):
            _servers.append(value)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._before = children()
        self._count = counted()
        with contextlib.ExitStack() as held:
            if item.get_closest_marker("heavy"):
                file = held.enter_context(self._lock.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield
        problems = []
        if left := left_over(self._before):
            problems.append("it left processes, which are ended now:\n" + "\n".join(left))
        count = counted() - self._count
        if (budget := budget_of(item)) is not None and count > budget:
            problems.append(
                f"it started {count} processes, and its budget is {budget}: call the product in "
                'this process, or mark the test with @pytest.mark.processes(N, "reason")'
            )
        if problems:
            pytest.fail("\n".join(problems), pytrace=False)
        return result


def budget_of(item: pytest.Item) -> int | None:
    """How many processes a test may start; None for any number, as in the higher tiers."""
    if marker := item.get_closest_marker("processes"):
        count, reason = marker.args
        assert isinstance(count, int) and reason, f"{item.nodeid}: processes(count, reason)"
        return count
    return BUDGETS.get(item.path.parent.name) if item.path.parent.parent.name == "tests" else None
