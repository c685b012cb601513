"""What a killed process leaves is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from portagpu.base import files
from portagpu.base.errors import OutputError
from portagpu.base.files import Scratch, write_atomic
from portagpu.base.subprocesses.start import python_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's files")
DIGITS = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has swept nothing yet, with a folder for temporary files of its own."""
    monkeypatch.setattr(files, "_swept", set())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def left(folder: Path, stem: str = "portagpu-ranks", boot: str | None = None) -> Path:
    """A folder as a killed process leaves it."""
    path = folder / f"{stem}-{files._boot() if boot is None else boot}-{DIGITS}"
    path.mkdir(mode=0o700)
    (path / "inside").mkdir()
    (path / "inside" / "file").write_text("x")
    return path


@contextmanager
def another(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a folder or file and says so with a line."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        env=python_environment({"TMPDIR": str(folder)}),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


HOLDS_A_FOLDER = """
    import time
    from portagpu.base.files import Scratch
    mine = Scratch("ranks")
    (mine.path / "file").write_text("x")
    print("ready", flush=True)
    time.sleep(600)
"""
HOLDS_A_FILE = """
    import os, pathlib, time
    from portagpu.base.files import write_atomic
    def hang(descriptor):
        print("ready", flush=True)
        time.sleep(600)
    os.fsync = hang
    write_atomic(pathlib.Path(os.environ["TMPDIR"]) / "result.json", "text")
"""


def test_a_folder_is_private_and_goes_with_its_end(tmp_path: Path) -> None:
    with Scratch("build") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
    assert names(tmp_path) == []
    mine = Scratch("build")
    mine.remove()
    mine.remove()
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [HOLDS_A_FOLDER, HOLDS_A_FILE], ids=["folder", "file"])
def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    with another(tmp_path, code) as process:
        (held,) = names(tmp_path)
        write_atomic(tmp_path / "mine", "x")
        assert held in names(tmp_path), "what another process uses was removed"
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(files, "_swept", set())
        Scratch("build").remove()
        assert held in names(tmp_path), "what a stopped process uses was removed"
        process.kill()
        process.wait()
        monkeypatch.setattr(files, "_swept", set())
        Scratch("build").remove()
    assert names(tmp_path) == ["mine"]


def test_a_forked_child_still_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = HOLDS_A_FOLDER.replace(
        'print("ready"',
        'import os\n    pid = os.fork()\n    if pid: os._exit(0)\n    print("ready"',
    )
    with another(tmp_path, code.replace("600", "2")) as process:
        process.wait()
        (held,) = names(tmp_path)
        Scratch("build").remove()
        assert names(tmp_path) == [held], "the folder of a rank was removed"


@pytest.mark.parametrize("stem", ["portagpu-ranks", ".portagpu-recording"])
def test_a_folder_that_nobody_holds_is_removed(tmp_path: Path, stem: str) -> None:
    left(tmp_path, stem)
    Scratch("build").remove()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "portagpu-results",
        "portagpu-ranks-archives",
        f"portagpu-ranks-{DIGITS}",
        f"portagpu-ranks-00000000-{DIGITS}0",
        f"my-portagpu-ranks-00000000-{DIGITS}",
        f"portagpu-ranks-00000000-{DIGITS}.old",
    ],
)
def test_a_folder_with_another_name_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    Scratch("build").remove()
    assert names(tmp_path) == [name]


@needs_root
def test_what_another_user_made_stays(tmp_path: Path) -> None:
    path = left(tmp_path)
    os.chown(path, 12345, 12345)
    Scratch("build").remove()
    assert names(tmp_path) == [path.name]


def test_a_link_with_the_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("x")
    link = tmp_path / f"portagpu-ranks-{files._boot()}-{DIGITS}"
    link.symlink_to(victim)
    Scratch("build").remove()
    assert names(victim) == ["file"]


def test_a_pipe_with_the_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"portagpu-ranks-{files._boot()}-{DIGITS}")
    Scratch("build").remove()


def test_what_another_machine_made_stays_for_a_day(tmp_path: Path) -> None:
    path = left(tmp_path, boot="ffffffff")
    files.sweep(tmp_path)
    assert path.exists(), "on a shared disk its lock may not be seen here"
    day_ago = time.time() - 90_000  # allowed: files have stamps of today
    os.utime(path, (day_ago, day_ago))
    files._swept.clear()
    files.sweep(tmp_path)
    assert not path.exists()


def test_a_folder_is_looked_through_once(tmp_path: Path) -> None:
    Scratch("build").remove()
    path = left(tmp_path)
    Scratch("build").remove()
    assert path.exists(), "each of hundreds of worlds lists the folder again"


def test_one_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, made = files.fcntl.flock, []

    def swept_first(descriptor: int, how: int) -> None:
        if not made:
            (path,) = tmp_path.iterdir()
            path.rmdir()
        made.append(descriptor)
        lock(descriptor, how)

    monkeypatch.setattr(files.fcntl, "flock", swept_first)
    with Scratch("build") as folder:
        assert len(made) == 2
        assert names(tmp_path) == [folder.name]


def test_a_file_system_without_locks_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    path = left(tmp_path)
    with Scratch("build") as folder:
        assert folder.exists()
    write_atomic(tmp_path / "file", "x")
    assert names(tmp_path) == ["file", path.name], "without locks nothing is known to be left"


def test_no_folder_for_temporary_files_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")
    with pytest.raises(
        OutputError, match=r"No such file or directory\); set TMPDIR to one"
    ) as reported:
        Scratch("build")
    assert "\n" not in str(reported.value)
