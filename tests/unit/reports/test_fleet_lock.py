"""One runner at a time in a folder: the kernel's lock, which another open of the file meets."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from portagpu.base.errors import OutputError
from portagpu.reports.fleet import record
from portagpu.reports.fleet.record import LOCK_FILE, FleetBusy, locked


def test_a_second_one_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with locked(folder):
        with pytest.raises(FleetBusy, match=f"process {os.getpid()} on .*: wait until it ends"):
            locked(folder).__enter__()
        assert (folder / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")
    with locked(folder):
        pass


def test_an_error_inside_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass


def test_a_holder_that_wrote_no_name_is_still_one(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FleetBusy, match="of unknown name"):
            locked(tmp_path).__enter__()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_nothing_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(record.fcntl, "flock", refused)
    with locked(tmp_path):
        pass


def test_what_cannot_be_locked_or_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="name a folder that is writable and shared"):
        locked(tmp_path / "file").__enter__()

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(record.fcntl, "flock", broken)
    before = {each.name for each in Path("/proc/self/fd").iterdir()}
    with pytest.raises(OutputError, match=f"cannot lock {tmp_path}: Input/output error"):
        locked(tmp_path).__enter__()
    assert {each.name for each in Path("/proc/self/fd").iterdir()} == before
