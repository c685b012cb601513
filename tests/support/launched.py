"""Programs that users start, on the CPU, with a time limit and no process left over."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

import portagpu as pg

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S: Final = 150


def run_on_the_cpu(command: list[str], folder: Path) -> tuple[int, str, str]:
    """(exit status, output, errors) of a program; its whole group ends with it."""
    environment = {
        **os.environ,
        **(pg.backend("cpu").comm.local_env or {}),
        "PORTAGPU_BACKEND": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{' '.join(command)} did not end within {LIMIT_S} s")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err
