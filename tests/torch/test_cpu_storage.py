"""A file on the CPU counts as storage only where the kernel says that it read from one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from portagpu.base.errors import Unsupported
from portagpu_cpu import storage

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 8192


@pytest.mark.parametrize(
    ("moved", "counted", "said"),
    [
        (OSError(errno.EINVAL, "Invalid argument"), [0, SIZE], "O_DIRECT failed: .*Invalid arg"),
        (0, [0, SIZE], "O_DIRECT failed: the file ends after 0 of 8192 bytes"),
        (SIZE, [None, None], "the kernel has no /proc/self/io"),
        (SIZE, [7, 7], "the kernel counted 0 of 8192 bytes from storage"),
        (SIZE, [7, 7 + SIZE - 1], "the kernel counted 8191 of 8192 bytes"),
        (SIZE, [7, 7 + SIZE], ""),
        (SIZE // 2, [7, 7 + SIZE], ""),
    ],
)
def test_a_first_read_shows_whether_there_is_storage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moved: OSError | int,
    counted: list[int | None],
    said: str,
) -> None:
    def preadv(*_: object) -> int:
        if isinstance(moved, OSError):
            raise moved
        return moved

    closed: list[int] = []
    counts = [{} if each is None else {"read_bytes": each} for each in counted]
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    monkeypatch.setattr(os, "O_DIRECT", 0)  # the folder of tests may be in memory
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(storage, "counters", lambda: counts.pop(0))
    close = os.close
    monkeypatch.setattr(os, "close", lambda number: (closed.append(number), close(number)))
    if said:
        with pytest.raises(Unsupported, match=said):
            storage.CpuFile(path, SIZE)
    else:
        storage.CpuFile(path, SIZE).close()
    assert len(closed) == 1, "the file is closed"
