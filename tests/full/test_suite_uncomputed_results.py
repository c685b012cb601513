"""Memory that nobody wrote does not pass for a result, whatever it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.torch.test_suite_uncomputed_results import DRAWS, PRODUCTS, nothing_passes_over

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.mark.processes(2, "some cases run in a child")
@pytest.mark.parametrize(
    ("names", "value"), [(PRODUCTS, 0.0), (PRODUCTS, 1.75), (DRAWS, 1.75)], ids=str
)
def test_no_case_passes_over_what_nobody_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...], value: float
) -> None:
    nothing_passes_over(value, monkeypatch, tmp_path, names)
