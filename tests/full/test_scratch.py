"""What a killed process leaves is removed by the next one, and nothing else is."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from portagpu.base.files import Scratch
from portagpu.base.subprocesses.start import python_environment
from tests.process.test_scratch import _fresh as _fresh
from tests.process.test_scratch import names

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes(20, "they meet")
def test_many_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    """Twenty processes make, use and leave folders next to each other; half are killed."""
    code = """
        import sys, os, signal
        from portagpu.base import files
        for turn in range(20):
            files._swept.clear()
            mine = files.Scratch("ranks")
            (mine.path / "file").write_text("x")
            assert (mine.path / "file").read_text() == "x"
            if turn == 10 and int(sys.argv[1]) % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            mine.remove()
    """
    environment = python_environment({"TMPDIR": str(tmp_path)})
    words = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    running = [
        subprocess.Popen([*words, str(number)], env=environment, stderr=subprocess.PIPE, text=True)
        for number in range(20)
    ]
    for number, process in enumerate(running):
        _, said = process.communicate(timeout=100)
        assert process.returncode == (-signal.SIGKILL if number % 2 else 0), said
    Scratch("build").remove()
    assert names(tmp_path) == []
