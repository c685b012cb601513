"""The suite catches a broken FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.ranks.test_suite_rank_faults import DEAR, FAULTS, conform, fails

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_library_with_a_fault_fails_the_case_for_it(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "child"
    site.mkdir()
    folder.mkdir()
    fails(conform(site, folder, [FAULTS[DEAR][0]]), DEAR)
