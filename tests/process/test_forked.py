"""Children that tests fork (``tests/support/forked.py``) are what they would be if started."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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
