"""What a training loop should use on devices that are not here, and errors of exhausted memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.processes(1, "the example is a program")
def test_the_guide_s_example_runs() -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "precision.md"
    (example,) = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    check = "assert product.shape == (64, 32) and product.dtype is torch.bfloat16"
    environment = {**os.environ, "PORTAGPU_BACKEND": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", f"{example}\n{check}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
