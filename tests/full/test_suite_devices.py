"""A machine with several devices: each is judged, and the one that computes wrong is named."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from portagpu.runs.results.run import Verdict
from tests.process.test_suite_devices import CLOSED, DATA, PRODUCT, RANKS, WRONG, _judged
from tests.process.test_suite_devices import site as site

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


def test_the_device_that_computes_wrong_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {(each.id, each.device): each for each in _judged(site, monkeypatch, *range(4))}
    verdicts = {key: each.verdict for key, each in found.items()}
    assert verdicts == {
        (DATA, None): Verdict.PASS,
        (RANKS, None): Verdict.PASS,
        (PRODUCT, "cpu:0"): Verdict.PASS,
        (PRODUCT, "cpu:1"): Verdict.PASS,
        (PRODUCT, f"cpu:{WRONG}"): Verdict.FAIL,
        ("suite/device", f"many device {CLOSED}"): Verdict.ERROR,
    }
    assert "the device fell off the bus" in found["suite/device", f"many device {CLOSED}"].reason
