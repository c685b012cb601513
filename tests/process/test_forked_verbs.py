"""Forks for calls of the command line: each is what a new process would be, and none is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import portagpu
from tests.conftest import ROOT
from tests.support.processes import descendants
from tests.support.waits import wait_until

if TYPE_CHECKING:
    from tests.support.forked_verbs import ForkedVerbs

SEEN = """
import atexit, os, sys
import own
atexit.register(print, "at the end")
print(sys.argv, dict(os.environ), os.getcwd(), own.WORD, sys.stdin.read() == "")
print("said", file=sys.stderr)
own.WORD = "changed"
os.environ["B"] = "c"
sys.exit(7)
"""


def test_a_fork_has_what_it_is_given_and_leaves_nothing_to_the_next(
    verbs: ForkedVerbs, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("WORD = 'mine'\n")
    for _ in range(2):
        ended = verbs(
            "a", "b c", folder=tmp_path, path=[tmp_path], environment={"A": "b"}, body=SEEN
        )
        assert ended.code == 7
        assert ended.out.splitlines() == [
            f"['portagpu', 'a', 'b c'] {{'A': 'b'}} {tmp_path} mine True",
            "at the end",
        ]
        assert ended.err == "said\n"


def test_a_fork_that_breaks_says_so_and_one_that_is_killed_too(verbs: ForkedVerbs) -> None:
    ended = verbs(body="1 / 0")
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert verbs(body="import os\nos.kill(os.getpid(), 9)").code == -signal.SIGKILL
    assert verbs("--version").ok() == f"portagpu {portagpu.__version__}\n"


def test_torch_and_what_others_declare_are_not_loaded_ahead(verbs: ForkedVerbs) -> None:
    code = """
import sys
import portagpu.facts.vendors.model as vendors
print("torch" in sys.modules, vendors._found, [m for m in sys.modules if m.endswith(".vendor")])
"""
    assert verbs(body=code).ok() == "False None []\n"


ASKS = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from tests.support.forked_verbs import ForkedVerbs
with ForkedVerbs(Path(sys.argv[2]), imports=[]) as verbs:
    verbs(body="import time\\nprint('begun', flush=True)\\ntime.sleep(600)")
"""


def test_nothing_is_left_of_a_killed_run(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-c", ASKS, str(ROOT), str(tmp_path)]
    with subprocess.Popen(words) as asking:
        try:
            wait_until(
                lambda: any(each.read_text() for each in tmp_path.glob("*/out")),
                "no fork has begun",
            )
            below = descendants(asking.pid)
            assert len(below) == 2
        finally:
            asking.kill()
    wait_until(
        lambda: not any(Path(f"/proc/{each}").exists() for each in below), "a process is left"
    )
