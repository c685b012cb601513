"""``portagpu plan``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.torch.test_plan_cli import track

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.torch
def test_both_estimators_and_their_disagreement_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert track(tmp_path, "train.py:planned") == 0
    assert "from the tracker" in capfd.readouterr().out
    assert track(tmp_path, "train.py:planned", "--json", "-") == 0
    tracked = json.loads(capfd.readouterr().out)["tracked"]
    assert tracked["disagreement"] == pytest.approx(tracked["closed_form"] / tracked["peak"] - 1)
    assert abs(tracked["disagreement"]) < 0.15
