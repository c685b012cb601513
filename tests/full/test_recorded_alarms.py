"""What is as designed is not a failure, and where nobody can say who is wrong nobody is blamed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.vendor_texts.test_recorded_alarms import A100, DISPLAY, RTX3090, RTX4090, replay, row

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes(6, "the order of sets is a process")
def test_every_run_says_the_same_whatever_the_order_of_sets(tmp_path: Path) -> None:
    """Several runs, each with its own seed for the hashes of texts."""
    replay(tmp_path, row(RTX4090), row(RTX3090), row(A100, width=8), row(DISPLAY, (1, 3, 3)))
    code = (
        "import sys\n"
        "from portagpu.checks.bringup import BringupOptions, bringup\n"
        "from portagpu.checks.recordings.replay import Recording\n"
        "run = bringup(BringupOptions(replay=Recording(sys.argv[1])))\n"
        "print(*[(r.id, str(r.verdict), r.device, r.reason) for r in run.results], sep='\\n')\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-P", "-c", code, str(tmp_path / "gpus.csv")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "3", "4", "5")
    }
    assert len(said) == 1
