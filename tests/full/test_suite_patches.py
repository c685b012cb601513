"""The suite catches what is broken next to the device; see ``tests/support/suite_patches.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

from tests.support.looped import rest
from tests.support.suite_patches import PATCHES
from tests.torch.test_suite_patches import CASES, fails_the_case_for_it, passes_without_a_fault

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


@pytest.mark.processes(1, "some cases run in a child")
@pytest.mark.parametrize("fault", rest(PATCHES))
def test_fault_fails_the_case_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    fails_the_case_for_it(monkeypatch, tmp_path, fault)


@pytest.mark.parametrize("name", rest(CASES))
def test_without_a_fault_the_case_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    passes_without_a_fault(monkeypatch, tmp_path, name)
