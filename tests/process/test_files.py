"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from portagpu.base import files
from portagpu.base.errors import OutputError
from portagpu.base.files import read_bounded, write_atomic
from portagpu.checks.recordings.record import record


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_text_arrives_as_utf8_and_the_path_comes_back(tmp_path):
    target = tmp_path / "a" / "b" / "result.json"
    assert write_atomic(target, "müß\n") == target
    assert target.read_bytes() == "müß\n".encode(), "not UTF-8, or line ends were changed"
    assert write_atomic(str(target), "new") == target, "a str is a path too"
    assert target.read_text() == "new", "the old content was not replaced"
    assert names(target.parent) == ["result.json"], "something else was left"


def test_an_empty_text_is_an_empty_file(tmp_path):
    assert write_atomic(tmp_path / "empty", "").read_bytes() == b""


@pytest.mark.parametrize("broken", ["fsync", "replace", "write"])
@pytest.mark.parametrize("old", [None, "old"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, broken, old):
    target = tmp_path / "result.json"
    if old is not None:
        target.write_text(old)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if broken == "fsync":
        monkeypatch.setattr(files.os, "fsync", full)
    elif broken == "replace":
        monkeypatch.setattr(Path, "replace", full)
    else:
        monkeypatch.setattr(files.os, "fdopen", full)
    with pytest.raises(OutputError, match="No space left on device; name a folder that is wr"):
        write_atomic(target, "new")
    monkeypatch.undo()
    assert names(tmp_path) == ([] if old is None else ["result.json"]), "a file was left"
    assert old is None or target.read_text() == old, "the old content was lost"


def test_a_really_full_disk_leaves_what_was_there(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "portagpu-test", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        write_atomic(disk / "result.json", "old")
        with pytest.raises(OutputError, match="No space left on device"):
            write_atomic(disk / "result.json", "x" * 200_000)
        assert names(disk) == ["result.json"], "a half-written file was left"
        assert (disk / "result.json").read_text() == "old", "the old content was lost"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "result.json", "new")
    assert names(tmp_path) == [], "a temporary file was left"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("file/result.json", "Not a directory|File exists"),
        ("folder", "Is a directory"),
        ("a\0b", "null"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_one_clear_line(tmp_path, path, reason):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=reason) as caught:
        write_atomic(f"{tmp_path}/{path}", "new")
    assert "\n" not in str(caught.value), "more than one line"
    assert isinstance(caught.value, OSError), "generic code catches the builtin"
    assert names(tmp_path) == ["file", "folder"], "something was left"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_read_only_file_system_is_one_clear_line():
    with pytest.raises(OutputError, match=r"cannot write /proc/portagpu/result\.json"):
        write_atomic("/proc/portagpu/result.json", "new")


def test_a_read_only_folder_is_one_clear_line(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write into any folder")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_atomic(tmp_path / "result.json", "new")
    finally:
        tmp_path.chmod(0o700)


def test_the_longest_name_that_a_folder_takes_is_written(tmp_path):
    name = "n" * os.pathconf(tmp_path, "PC_NAME_MAX")
    assert write_atomic(tmp_path / name, "x").read_text() == "x"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o027])
def test_permissions_are_those_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "result.json", "new")
        assert os.umask(umask) == umask, "writing a file changed the umask"
    finally:
        os.umask(before)
    mode = stat.S_IMODE((tmp_path / "result.json").stat().st_mode)
    assert mode == 0o666 & ~umask, f"the mode is {mode:o}"


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "result.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    assert write_atomic(link, "new") == link
    assert link.is_symlink(), "the link was replaced by a file"
    assert real.read_text() == "new", "the target of the link was not written"
    assert names(tmp_path / "real") == ["result.json"]


def test_a_link_to_nothing_makes_its_file(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "new" / "result.json")
    write_atomic(tmp_path / "link.json", "new")
    assert (tmp_path / "new" / "result.json").read_text() == "new"


def test_links_in_a_circle_are_one_clear_line(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    before = names(tmp_path)
    try:
        write_atomic(tmp_path / "a", "new")
    except OutputError as error:
        assert "cannot write" in str(error)
    assert names(tmp_path) == before


@pytest.fixture
def shared(tmp_path):
    """A folder that all may write, with the sticky bit, in the name of root."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's files")
@pytest.mark.parametrize("what", ["link", "folder", "pipe", "chain"])
def test_what_another_user_planted_in_a_shared_folder_is_not_written_through(
    tmp_path, shared, what
):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "result.json").write_text("old")
    planted = shared / "result.json"
    target = planted
    if what == "link":
        planted.symlink_to(victim / "result.json")
    elif what == "chain":
        planted.symlink_to(victim / "result.json")
        target = tmp_path / "mine.json"
        target.symlink_to(planted)
    elif what == "folder":
        planted = shared / "out"
        planted.symlink_to(victim)
        target = planted / "result.json"
    else:
        os.mkfifo(planted)
    os.chown(planted, 12345, 12345, follow_symlinks=False)
    for call in (lambda: write_atomic(target, "new"), lambda: files.check_writable(target)):
        with pytest.raises(OutputError, match="is a link, pipe or device of another user"):
            call()
    assert (victim / "result.json").read_text() == "old", "it was written through"
    assert names(victim) == ["result.json"]


def test_ones_own_link_in_a_shared_folder_is_followed(tmp_path, shared):
    (shared / "latest.json").symlink_to(tmp_path / "result.json")
    write_atomic(shared / "latest.json", "new")
    assert (tmp_path / "result.json").read_text() == "new"


def test_links_lead_where_the_kernel_says(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").symlink_to("a/b")
    (tmp_path / "a" / "d").symlink_to("../c/../e.json")
    write_atomic(tmp_path / "a" / "d", "new")
    assert (tmp_path / "a" / "e.json").read_text() == "new"


@pytest.mark.parametrize("what", ["link", "pipe", "file"])
def test_a_private_file_replaces_what_is_there(tmp_path, what):
    outside, target = tmp_path / "outside", tmp_path / "x" / "y" / "private"
    target.parent.mkdir(parents=True)
    outside.write_text("old")
    if what == "link":
        target.symlink_to(outside)
    elif what == "pipe":
        os.mkfifo(target)
    else:
        target.write_text("old")
    files.write_private(target, "new")
    assert (target.read_text(), outside.read_text()) == ("new", "old")
    assert stat.S_IMODE(target.lstat().st_mode) == 0o600
    assert names(target.parent) == ["private"]


def test_a_device_is_written_into_and_never_replaced():
    before = Path("/dev/null").stat()
    write_atomic("/dev/null", "gone")
    after = Path("/dev/null").stat()
    assert stat.S_ISCHR(after.st_mode), "/dev/null was replaced by a file"
    assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)


def test_a_named_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_atomic(pipe, "through")
    reader.join(60)
    assert got == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode), "the pipe was replaced by a file"


def test_standard_output_as_a_path_works_in_a_pipe():
    code = "from portagpu.base.files import write_atomic; write_atomic('/dev/stdout', 'hello')"
    link = Path("/dev/stdout").readlink()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert Path("/dev/stdout").readlink() == link, "/dev/stdout was replaced"
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr


def test_what_utf8_cannot_hold_is_escaped(tmp_path):
    write_atomic(tmp_path / "result.json", "name \udcff end")
    assert (tmp_path / "result.json").read_bytes() == b"name \\udcff end"


def test_many_writers_leave_one_whole_file(tmp_path):
    target = tmp_path / "result.json"
    texts = [str(number) * 50_000 for number in range(8)]
    threads = [threading.Thread(target=write_atomic, args=(target, text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert target.read_text() in texts, "two writers were mixed in one file"
    assert names(tmp_path) == ["result.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a link of another user")
def test_record_follows_no_link_of_another_user(tmp_path: Path) -> None:
    open_to_all = tmp_path / "all"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    victim = tmp_path / "victim"
    victim.mkdir()
    link = open_to_all / "planted"
    link.symlink_to(victim)
    os.lchown(link, 65534, 65534)
    with pytest.raises(OutputError, match="of another user"):
        record(link / "recording", root=tmp_path)
    assert not list(victim.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the kernel's messages")
def test_a_file_that_has_nothing_to_say_yet_is_not_a_file(tmp_path: Path) -> None:
    if not os.access("/proc/kmsg", os.R_OK):
        pytest.skip("there are no messages of the kernel here")
    with contextlib.suppress(OSError):
        assert isinstance(read_bounded("/proc/kmsg", 10), bytes)
