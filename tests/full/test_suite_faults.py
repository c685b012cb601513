"""A device without a fault passes the cases of faults with as many random programs as a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from portagpu.runs.results.run import Verdict
from tests.support import suite_harness
from tests.support.suite_patches import PATCHES
from tests.torch.test_suite_faults import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

NAMES = {name for _, _, name, _ in FAULTS.values()} | {each.case for each in PATCHES.values()}


@pytest.mark.parametrize("name", sorted(each for each in NAMES if each.endswith("-programs")))
def test_good_backend_passes_many_random_programs(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    gpu = suite_harness.open_device(monkeypatch)
    result = suite_harness.run(gpu, name, tmp_path, programs=800)
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), f"{name}: {result.reason}"
