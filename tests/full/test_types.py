"""The types of the product hold: ``mypy --strict``, next to the other tests and not before them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

LIMIT_S = 900
"""What it has not cached takes a minute."""


@pytest.mark.first
@pytest.mark.heavy
def test_types() -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
