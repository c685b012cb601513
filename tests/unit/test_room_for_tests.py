"""A run of tests that has no room for temporary files says so in one line."""

from __future__ import annotations

import shutil
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.conftest import MIN_FREE_BYTES, pytest_sessionstart

if TYPE_CHECKING:
    from pathlib import Path


def begin(basetemp: Path | None = None) -> None:
    pytest_sessionstart(SimpleNamespace(config=SimpleNamespace(getoption=lambda _: basetemp)))


def test_a_run_with_room_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def usage(place: Path) -> SimpleNamespace:
        asked.append(place)
        return SimpleNamespace(free=MIN_FREE_BYTES)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    begin(tmp_path / "base")
    begin()
    assert [str(place) for place in asked] == [str(tmp_path), tempfile.gettempdir()]


def test_a_full_disk_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=MIN_FREE_BYTES - 1))
    with pytest.raises(pytest.exit.Exception, match=r"has 511 MiB free, and .* set TMPDIR") as said:
        begin(tmp_path / "base")
    assert "\n" not in str(said.value)


def test_no_folder_for_temporary_files_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    with pytest.raises(pytest.exit.Exception, match=r"cannot write temporary files: .* set TMPDIR"):
        begin()
