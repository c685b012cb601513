"""The file of an area of measures is loaded once, and one that is missing is an installation's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import PortagpuError
from portagpu.suites.performance import cases

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_is_missing_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "matrix_dir", lambda: tmp_path)
    (tmp_path / "performance").mkdir()
    monkeypatch.delitem(sys.modules, "portagpu_performance_acme", raising=False)
    with pytest.raises(PortagpuError, match=r"acme\.py is missing: reinstall portagpu from its"):
        cases.load_area("acme")
    assert "portagpu_performance_acme" not in sys.modules
    path = tmp_path / "performance" / "acme.py"
    path.write_text("LOADED = []\n", "utf-8")
    first = cases.load_area("acme")
    assert first.__file__ == str(path)
    assert cases.load_area("acme") is first
    sys.modules.pop("portagpu_performance_acme")
