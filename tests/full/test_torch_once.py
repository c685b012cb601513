"""Children that the rank server forks, so that torch is imported once: they are as if started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.subprocesses.start import python_environment
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.suites import performance as bench
from portagpu.suites.conformance import Selection
from tests.process.test_subprocesses import is_gone
from tests.process.test_torch_once import (
    CASES,
    CHILD,
    EXPECTED,
    LIMIT_S,
    verdicts,
)
from tests.process.test_torch_once import fork as fork
from tests.process.test_torch_once import imports as imports
from tests.process.test_torch_once import libraries as libraries
from tests.process.test_torch_once import ranks as ranks
from tests.support.case_files import conform, write_cases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLIENT: Final = """
import os, signal, sys
from portagpu.base.subprocesses import Subprocess
from portagpu.runs.world import Ranks
ranks = Ranks()
child = Subprocess("evaluates", folder=None, forker=ranks)
made = "__import__('portagpu.runs.world').runs.world.Ranks()"
start = f"(r := {made}, r._wait_until_ready(), r._child.pid)[2]"
server = child.ask({"do": start}, 60)[0]["value"]
assert child.ask({"do": "os.getppid()"}, 60)[0]["value"] == ranks._child.pid
pids = {"server": ranks._child.pid, "child": child.pid, "its server": server}
print(*pids.values(), flush=True)
for name in sys.argv[2:]:
    os.kill(pids[name], signal.SIGSTOP)
if sys.argv[1] in pids:
    os.kill(pids[sys.argv[1]], signal.SIGKILL)
if sys.argv[1] == "close":
    child.close(); ranks.close()
elif sys.argv[1] == "close the server":
    ranks.close(); child.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("stopped", [(), ("server",), ("child",), ("its server",), "all"])
@pytest.mark.parametrize(
    "how", ["client", "server", "child", "its server", "close", "close the server"]
)
@pytest.mark.usefixtures("fork")
def test_no_process_is_left_in_whatever_order_they_end(
    libraries: Path, how: str, stopped: tuple[str, ...] | str
) -> None:
    (libraries / "evaluates.py").write_text(CHILD.format(before=""), "utf-8")
    names = ("server", "child", "its server") if stopped == "all" else stopped
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLIENT, how, *names],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    assert all(map(is_gone, pids))


@pytest.mark.torch
def test_a_suite_whose_server_is_killed_goes_on_with_another(
    tmp_path: Path, imports: Callable[[], list[int]]
) -> None:
    folder = write_cases(
        tmp_path / "cases", CASES.format(kill="os.kill(os.getppid(), 9); time.sleep(600)")
    )
    expected = {**EXPECTED, "rng/kills-server": "ERROR the process died of SIGKILL"}
    assert verdicts(conform("cpu", folder=folder)) == expected
    assert len(set(imports())) == 2


@pytest.mark.torch
def test_a_bringup_imports_torch_once(
    tmp_path: Path, imports: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_cases(tmp_path / "cases", CASES.format(kill="pass"))
    monkeypatch.setattr("portagpu.suites.conformance.runner._folder", lambda _: folder)
    monkeypatch.setattr("portagpu.suites.conformance.runner.missing_cases", lambda _: "")
    monkeypatch.setattr(
        "portagpu.checks.bringup.checks.numerics.Selection", lambda smoke: Selection()
    )
    run = bringup(BringupOptions(backend="cpu", only=("numerics",)))
    found = verdicts(run.results)
    assert {key: found.get(key) for key in EXPECTED} == EXPECTED
    assert len(imports()) == 1


@pytest.mark.torch
def test_a_benchmark_imports_torch_once(imports: Callable[[], list[int]]) -> None:
    run = bench.run(bench.BenchOptions(backend="cpu", names=("memory/copy",)))
    assert run.results
    assert len(imports()) == 1
