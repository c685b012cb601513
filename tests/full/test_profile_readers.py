"""``portagpu profile`` opens its outputs with the readers of ``portagpu trace``."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("adbc_driver_sqlite")
pytest.importorskip("portagpu.traces.analysis.kineto")

from typing import TYPE_CHECKING

from tests.process.test_profile_readers import _clean as _clean
from tests.process.test_profile_readers import captured
from tests.support.profile_runs import write_script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.torch
def test_traces_of_torch_are_opened(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words = ("--with", "torch", "--", sys.executable, str(write_script(tmp_path)))
    counts = captured(capfd, tmp_path, *words)["extra"]["counts"]
    assert counts["operator"] >= 3
    assert counts["range"] >= 1
