"""Memory that holds another value than zero does not pass for a result either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.torch.test_suite_uncomputed_results import DRAWS, PRODUCTS, nothing_passes_over

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("names", [PRODUCTS, DRAWS], ids=["products", "draws"])
def test_no_case_passes_over_what_nobody_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: tuple[str, ...]
) -> None:
    nothing_passes_over(1.75, monkeypatch, tmp_path, names)
