"""What a test leaves is ended and fails it; so does what it starts above its budget."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import owned

if TYPE_CHECKING:
    from pathlib import Path

SLEEPER = "import time; time.sleep(600)"
PARENT = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); print(flush=True); time.sleep(600)"
)


def test_what_is_left_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "_GRACE_S", 0.0)
    before = owned.children()
    child = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    tree = owned.below(child.pid)
    assert len(tree) == 2
    left = owned.left_over(before)
    assert {int(line.partition(":")[0]) for line in left} == tree
    assert any("time.sleep(600)" in line for line in left)
    assert owned.children() == before
    child.stdout.close()
    child.wait()


def test_what_has_ended_or_is_kept_is_not_left() -> None:
    before = owned.children()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    count = owned.counted()
    with owned.kept():
        child = subprocess.Popen([sys.executable, "-c", SLEEPER])
    try:
        assert owned.left_over(before) == []
        assert owned.counted() == count
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        ended.wait()
        owned._kept.discard(child.pid)


def item(path: Path, *marks: Any) -> Any:
    return SimpleNamespace(
        path=path, nodeid="x", get_closest_marker=lambda name: next(iter(marks), None)
    )


def test_budgets_are_those_of_folders_and_of_markers(tmp_path: Path) -> None:
    for folder, budget in owned.BUDGETS.items():
        assert owned.budget_of(item(tmp_path / "tests" / folder / "test_x.py")) == budget
    for other in ("tests/full", "tests/deep", "somewhere/unit"):
        assert owned.budget_of(item(tmp_path / other / "test_x.py")) is None
    three = SimpleNamespace(args=(3, "because"))
    assert owned.budget_of(item(tmp_path / "tests" / "unit" / "test_x.py", three)) == 3
    with pytest.raises(AssertionError, match=r"processes\(count, reason\)"):
        owned.budget_of(item(tmp_path, SimpleNamespace(args=(3, ""))))


TESTS = """
import subprocess, sys, pytest
def begin(): return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def run(): subprocess.run([sys.executable, "-c", ""], check=True)
def test_leaves(): begin()
def test_goes_on(): pass
def test_too_many(): [run() for _ in range(9)]
@pytest.mark.processes(9, "all at once")
def test_many(): [run() for _ in range(9)]
@pytest.fixture(scope="module")
def server():
    [run() for _ in range(9)]
    child = begin()
    yield
    child.kill(); child.wait()
def test_has_a_server(server): run()
def test_has_it_too(server): pass
"""


def test_a_run_fails_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tests" / "process"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "import pathlib\n"
        "from tests.support import owned\n"
        "owned._GRACE_S = 0.0\n"
        "def pytest_configure(config):\n"
        "    for each in owned.MARKERS: config.addinivalue_line('markers', each)\n"
        f"    lock = pathlib.Path({str(tmp_path)!r}, 'lock')\n"
        "    config.pluginmanager.register(owned.Owned(lock))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "6 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    assert "ERROR tests/process/test_it.py::test_leaves - Failed: it left processes" in done.stdout
    assert "started 9 processes, and its budget is 8" in done.stdout
