"""``gpu.comm.init`` and ``shutdown``: every launcher, and every way to fail, on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def test_torchrun_restarts_ranks_with_the_store_that_they_had(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "import portagpu\n"
        "with portagpu.backend().comm.init(timeout_s=30) as world:\n"
        "    line = f'joined {world.rank} {world.launcher} {world.local_rank}'\n"
        "    os.write(1, f'{line}\\n'.encode())\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = subprocess.run(
        [*command, "--nproc_per_node=2", "--max-restarts=1", str(script)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PORTAGPU_BACKEND": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    joined = sorted(line for line in found.stdout.splitlines() if line.startswith("joined"))
    assert found.returncode == 0, found.stderr
    assert joined == ["joined 0 torchrun 0"] * 2 + ["joined 1 torchrun 1"] * 2
