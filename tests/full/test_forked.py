"""Children that tests fork (``tests/support/forked.py``) are what they would be if started."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

pytest.importorskip("torch")

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.process.test_forked import LIMIT_S
from tests.support.forked import starting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

pytestmark = pytest.mark.torch


SEEN = """
import json, os, signal, stat, sys

def files():
    return {
        number: stat.S_IFMT(os.fstat(int(number)).st_mode)
        for number in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{number}")
        and not stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    }

handled = {each.name: str(signal.getsignal(each)) for each in signal.Signals}
handled["SIGINT"] = handled["SIGINT"].partition(" at ")[0]
print(json.dumps({
    "argv": sys.argv,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "files": files(),
    "folder": os.getcwd(),
    "group": os.getpgrp() == os.getpid(),
    "input": sys.stdin.read(),
    "main": sorted(set(dir(sys.modules["__main__"])) - {"__annotations__"}),
    "parent": os.getppid(),
    "path": sys.path,
    "proc": sorted(filter(None, open("/proc/self/environ").read().split(chr(0)))),
    "session": os.getsid(0) == os.getpid(),
    "signals": handled,
    "streams": [(each.encoding, each.errors, each.line_buffering, each.write_through)
                for each in (sys.stdin, sys.stdout, sys.stderr)],
    "threads": len(os.listdir("/proc/self/task")) if "torch" not in sys.modules else 1,
    "umask": os.umask(0),
    "variables": dict(os.environ),
}))
print("also", file=sys.stderr)
"""


def _without_times(value: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    if not isinstance(value, dict):
        return value
    differs = ("id", "started", "ended", "duration_s", "area_duration_s")
    return {
        name: _without_times(each)
        for name, each in value.items()
        if name not in differs or (name == "id" and "/" in str(each))
    }


def _fixed() -> dict[str, str]:
    """The variables with which Python and libraries of this process began."""
    return {name: text for name, text in os.environ.items() if name.startswith(("PYTHON", "OMP_"))}


def test_a_forked_run_and_a_started_one_give_the_same_document(child: Callable[..., Child]) -> None:
    words = ("-m", "portagpu", "conform", "--backend", "cpu", "--json", "-")
    only = ("--only", "rng/seed-*", "--only", "collectives/barrier*", "--only", "graphs")
    ended, documents = [], []
    for way in (nullcontext, starting):
        with way():
            ended.append(child(*words, *only))
        documents.append(json.loads(ended[-1].out))
    assert [each.code for each in ended] == [0, 0], ended[0].err + ended[1].err
    forked, started = map(_without_times, documents)
    assert forked == started
    verdicts = {each["id"].partition("/")[0]: each["verdict"] for each in started["results"]}
    assert verdicts == {"rng": "PASS", "collectives": "PASS", "graphs": "SKIP"}
    lines = [[line.split() for line in each.err.splitlines()] for each in ended]
    assert [line[:1] for line in lines[0]] == [line[:1] for line in lines[1]]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"start_new_session": True, "cwd": "/usr"},
        {"process_group": 0, "env": {"PATH": "/bin", "PYTHONPATH": "/usr/share"}},
        {"pass": True, "env": {**os.environ, "PYTHONSAFEPATH": "1"}},
    ],
)
def test_a_child_sees_what_it_would_see(tmp_path: Path, given: dict[str, Any]) -> None:
    given = {"cwd": tmp_path, **given}
    reader, writer = os.pipe()
    if given.pop("pass", False):
        given["pass_fds"] = (reader, writer)
    given["env"] = {**_fixed(), **given.get("env", os.environ)}
    seen = []
    for way in (nullcontext, starting):
        with way():
            done = subprocess.run(
                [sys.executable, "-c", SEEN, "--a", "word"],
                input="some text",
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                **given,
            )
        assert (done.returncode, done.stderr) == (0, "also\n")
        seen.append(json.loads(done.stdout))
    os.close(reader)
    os.close(writer)
    assert seen[0] == seen[1]
    assert seen[0]["parent"] == os.getpid()


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit('why')",
        "import sys; sys.exit()",
        "import os; os._exit(7)",
        "raise ValueError('wrong')",
        "def f(): return 1 / 0\nf()",
        "1 +",
        "raise KeyboardInterrupt",
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "import os; os.abort()",
        "import os; os.close(1); print('x')",
        "import atexit; atexit.register(print, 'late'); print('first', end=' ')",
        (
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
        ),
    ],
)
def test_a_child_ends_as_it_would_end(child: Callable[..., Child], code: str) -> None:
    forked = child("-c", code)
    with starting():
        started = child("-c", code)
    # a stream that Python opened itself has a mode
    same = replace(started, err=started.err.replace(" mode='w'", ""))
    assert replace(forked, err=forked.err.replace(" mode='w'", "")) == same
