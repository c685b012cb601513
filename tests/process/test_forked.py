"""Children that tests fork (``tests/support/forked.py``) are what they would be if started."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import textwrap
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


PROGRAM = """
import sys
print(__name__, __file__, sys.argv, sys.path[0], sys.stdout.write_through, sys.stdin.read())
print(sorted(name for name in globals() if name.startswith("__")))
"""
RANK = """
import sys
loaded = "torch" in sys.modules
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
text = f"{loaded} {total.item()} {sys.argv} {os.environ['WORLD_SIZE']}"
pathlib.Path(f"rank{os.environ['RANK']}").write_text(text)
"""


def in_both_ways(words: list[str], folder: Path) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of Python with these words: started, then forked."""
    found = []
    for way in (starting, contextlib.nullcontext):
        with way():
            ended = subprocess.run(
                [sys.executable, *words],
                cwd=folder,
                input="given",
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        found.append((ended.returncode, ended.stdout, ended.stderr))
    return found


@pytest.mark.parametrize(
    "words", [["program.py", "-m", "word"], ["-u", "program.py"], ["-P", "-u", "at/program.py"]]
)
def test_a_file_runs_as_it_does_when_started(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "at").mkdir()
    for folder in (tmp_path, tmp_path / "at"):
        (folder / "program.py").write_text(PROGRAM)
    started, forked = in_both_ways(words, tmp_path)
    assert forked == started
    assert forked[0] == 0


@pytest.mark.parametrize("source", ["1 / 0", "raise SystemExit(3)", "not Python"])
def test_a_file_ends_as_it_does_when_started(tmp_path: Path, source: str) -> None:
    (tmp_path / "program.py").write_text(f"def main():\n    {source}\nmain()\n")
    started, forked = in_both_ways(["program.py"], tmp_path)
    assert forked == started
    assert forked[0] != 0


def test_a_file_that_does_not_exist_is_started(tmp_path: Path) -> None:
    started, forked = in_both_ways(["none.py"], tmp_path)
    assert forked == started
    assert forked[0] == 2


@pytest.mark.processes(9, "torchrun and two ranks, and these once more")
def test_ranks_of_torchrun_are_forked_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RANK)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with starting():
        subprocess.run(
            [sys.executable, *launcher, "program.py"], cwd=tmp_path, timeout=LIMIT_S, check=True
        )
    files = [tmp_path / f"rank{rank}" for rank in (0, 1)]
    assert [each.read_text() for each in files] == ["False 2.0 ['program.py'] 2"] * 2
    subprocess.run(
        [sys.executable, *launcher, "program.py"], cwd=tmp_path, timeout=LIMIT_S, check=True
    )
    # without a number of threads torchrun sets one, which is read at the start
    forked = "OMP_NUM_THREADS" in os.environ
    assert [each.read_text() for each in files] == [f"{forked} 2.0 ['program.py'] 2"] * 2
