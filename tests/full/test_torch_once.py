"""Children that the rank server forks, so that torch is imported once: they are as if started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from portagpu.base.subprocesses.start import python_environment
from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.suites import performance as bench
from portagpu.suites.conformance import Selection
from tests.process.test_subprocesses import LEAVING, is_gone
from tests.process.test_torch_once import CHILD, LIMIT_S, ask, was_forked
from tests.process.test_torch_once import fork as fork
from tests.process.test_torch_once import imports as imports
from tests.process.test_torch_once import libraries as libraries
from tests.process.test_torch_once import limit as limit
from tests.process.test_torch_once import ranks as ranks
from tests.support.case_files import conform, write_cases
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from portagpu.base.subprocesses import Subprocess
    from portagpu.runs.results.run import Result
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.usefixtures("started")

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


CASES: Final = """
def add(rank): return rank.rank

@case("rng/first", spec="Passes.")
def test_first(gpu, torch): assert torch.ones(2).sum() == 2

@case("rng/kills", spec="Ends its process.")
def test_kills(gpu): os.kill(os.getpid(), 9)

@case("rng/kills-server", spec="Ends the process that forked its own.")
def test_kills_server(gpu):
    {kill}

@case("collectives/ranks", spec="Passes.", capability="collectives")
def test_ranks(world): assert world(2, add) == [0, 1]
"""


ENDS: Final = {
    "exits": ("sys.exit(3)", "ended with status 3"),
    "ends": ("os.close(channel.reader) or sys.exit()", "ended with status 0"),
    "says": ("sys.exit('no driver')", "ended with status 1"),
    "raises": ("1 / 0", "ended with status 1"),
    "killed": ("os.kill(os.getpid(), 9)", "died of SIGKILL"),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM)", "died of SIGTERM"),
    "crashes": ("faulthandler._sigsegv()", "died of SIGSEGV"),
    "aborts": ("print('bad', file=sys.stderr, flush=True) or os.abort()", "died of SIGABRT"),
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT)", "died of SIGINT"),
    "at exit": ("atexit.register(print, 'left', file=sys.stderr) and sys.exit(4)", "status 4"),
    "thread": ("threading.Thread(target=time.sleep, args=(0.2,)).start() or sys.exit(5)", "us 5"),
}


EXPECTED: Final = {
    "rng/first": "PASS",
    "rng/kills": "ERROR the process died of SIGKILL",
    "rng/kills-server": "PASS",
    "collectives/ranks": "PASS",
}


LEAVES: Final = {
    "program": "subprocess.Popen(['sleep', '600']).pid",
    "session": "subprocess.Popen(['sleep', '600'], start_new_session=True).pid",
    "fork": "(pid := os.fork()) or (os.setsid(), time.sleep(600)) and pid",
    "daemon": "int(subprocess.check_output([sys.executable, 'leaving.py', '2'], cwd={folder!r}))",
}


def verdicts(results: list[Result]) -> dict[str, str]:
    return {each.id: f"{each.verdict} {each.reason}".strip() for each in results}


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
    for module in ("engine", "runner"):
        monkeypatch.setattr(f"portagpu.suites.conformance.{module}.cases_folder", lambda _: folder)
    monkeypatch.setattr("portagpu.suites.conformance.runner.missing_cases", lambda _: "")
    monkeypatch.setattr(
        "portagpu.checks.bringup.checks.numerics.Selection", lambda **_: Selection()
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


@pytest.mark.torch
def test_a_run_of_the_suite_imports_torch_once(
    tmp_path: Path, imports: Callable[[], list[int]]
) -> None:
    folder = write_cases(tmp_path / "cases", CASES.format(kill="pass"))
    assert verdicts(conform("cpu", folder=folder)) == EXPECTED
    assert len(imports()) == 1


@pytest.mark.parametrize("how", [*ENDS])
def test_a_forked_child_ends_as_a_started_one_does(
    fork: Callable[..., Subprocess], ranks: Ranks, how: str
) -> None:
    do, said = ENDS[how]
    ends = []
    for forker in (ranks, None):
        with fork("faulthandler.enable()", forker=forker) as child:
            assert was_forked(child, ranks) is (forker is ranks)
            child.send({"do": do})
            assert child.receive(LIMIT_S) is None
            ends.append((child.how_it_ended(), child.last_line(), child.running))
    assert ends[0] == ends[1]
    assert ends[0][0].endswith(said)


@pytest.mark.parametrize("what", [*LEAVES])
@pytest.mark.parametrize("end", ["", "sys.exit()", "os.kill(os.getpid(), 9)", "stop"])
def test_nothing_is_left_of_a_forked_child(
    fork: Callable[..., Subprocess], ranks: Ranks, tmp_path: Path, what: str, end: str
) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING, "utf-8")
    with fork() as child:
        assert was_forked(child, ranks)
        left = ask(child, LEAVES[what].format(folder=str(tmp_path)))
        if end == "stop":
            os.kill(child.pid, signal.SIGSTOP)
        elif end:
            child.send({"do": end})
            # what it left may hold its pipe
            wait_until(lambda: not child.running, "it does not end")
    assert is_gone(left)
    assert is_gone(child.pid)
    with fork() as child:  # the server goes on
        assert was_forked(child, ranks)
