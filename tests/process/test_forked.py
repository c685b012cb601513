"""Children that tests fork (``tests/support/forked.py``) are what they would be if started."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.forked import starting
from tests.support.processes import descendants
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

LIMIT_S = 120


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


def _fixed() -> dict[str, str]:
    """The variables with which Python and libraries of this process began."""
    return {name: text for name, text in os.environ.items() if name.startswith(("PYTHON", "OMP_"))}


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


LOADED = "import sys; print('torch' in sys.modules)"


@pytest.mark.parametrize(
    "changed",
    [
        {"words": ("-O", "-c", LOADED)},
        {"words": ("-W", "error", "-c", LOADED)},
        {"environment": {"PYTHONOPTIMIZE": "1"}},
        {"environment": {"OMP_NUM_THREADS": "17"}},
        {"environment": {"LD_LIBRARY_PATH": "/usr/lib/none"}},
        {"environment": {"MANY": "x" * 101_000}},
        {"module": "torch.py"},
        {"module": "json/__init__.py"},
        {"module": "sitecustomize.py"},
        {"module": "child/torch.py", "environment": {"PYTHONSAFEPATH": ""}},
    ],
)
def test_what_would_make_a_difference_is_started(
    child: Callable[..., Child], tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert child("-c", LOADED, path=[tmp_path]).ok() == "True\n"
    if module := changed.pop("module", None):
        (tmp_path / module).parent.mkdir(exist_ok=True)
        (tmp_path / module).touch()
        changed["path"] = [tmp_path]
    words = changed.pop("words", ("-c", LOADED))
    assert child(*words, **changed).ok() == "False\n"


def test_a_child_has_such_children_and_leaves_no_process(tmp_path: Path) -> None:
    code = f"""
    import os, subprocess, sys, time
    code = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    print(os.getpid(), said, flush=True)
    time.sleep({LIMIT_S})
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        own, parent, loaded = process.stdout.readline().split()
        below = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert (int(own), int(parent), loaded) == (process.pid, process.pid, "True")
    assert len(below) == 1, "the process that its own children are forked from"

    def gone() -> bool:
        left = [pid for pid in below if Path(f"/proc/{pid}/fd").exists()]
        return not any(os.path.lexists(f"/proc/{pid}/exe") for pid in left)

    wait_until(gone, "it stays")


def test_onednn_reads_its_variables_in_the_child(child: Callable[..., Child]) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the names of instruction sets are those of x86-64")
    code = f"{LOADED}; import torch; torch.nn.functional.conv2d(*[torch.ones(1, 1, 8, 8)] * 2)"
    limits = {"ONEDNN_VERBOSE": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    said = child("-c", code, environment=limits).ok()
    # what oneDNN writes does not wait in a buffer of Python
    assert "True" in said.splitlines()
    assert "isa:Intel SSE4.1" in said
