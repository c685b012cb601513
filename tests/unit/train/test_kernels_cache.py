"""What is kept between runs is believed only where nobody else can have written it."""

from __future__ import annotations

import json
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.cli import main
from portagpu.train.kernels import cache as caches
from portagpu.train.kernels.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another user's files")
OTHER = 12345
KEPT = {"registers": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache that holds "a"."""
    place = tmp_path / "portagpu" / "compile"
    Cache(place).put("a", KEPT)
    return place


def test_cache_gives_back_what_it_was_given(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new")
    assert cache.get("a") is None
    cache.put("a", KEPT)
    assert cache.get("a") == KEPT
    assert Cache(tmp_path / "new").get("a") == KEPT
    assert cache.problem == ""


def test_nobody_else_may_read_or_write_it(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        Cache(tmp_path / "x" / "y").put("a", KEPT)
    finally:
        os.umask(before)
    assert Cache(tmp_path / "x" / "y").get("a") == KEPT, "a loose umask makes it untrusted"
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "x", tmp_path / "x" / "y")]
    assert modes == [0o700, 0o700]
    assert (tmp_path / "x" / "y" / "a.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": 1', "\xff", '{"value": {}}'])
def test_damaged_file_is_as_good_as_none(folder: Path, text: str) -> None:
    (folder / "a.json").write_text(text, "latin-1")
    assert Cache(folder).get("a") is None


def test_an_altered_entry_and_another_keys_are_as_good_as_none(folder: Path) -> None:
    text = (folder / "a.json").read_text()
    assert Cache(folder).get("a") == KEPT
    (folder / "b.json").write_text(text)
    assert Cache(folder).get("b") is None, "an entry under another key was believed"
    (folder / "a.json").write_text(text.replace(": 3", ": 4"))
    assert Cache(folder).get("a") is None, "an altered entry was believed"


def test_every_flipped_bit_is_seen(folder: Path) -> None:
    data = (folder / "a.json").read_bytes()
    numbers = random.Random(1)  # noqa: S311 - a seed
    for _ in range(300):
        changed = bytearray(data)
        changed[numbers.randrange(len(data) - 1)] ^= 1 << numbers.randrange(8)
        (folder / "a.json").write_bytes(changed)
        assert Cache(folder).get("a") in (None, KEPT), bytes(changed)


def test_it_waits_for_no_pipe_and_reads_no_large_file(folder: Path) -> None:
    (folder / "a.json").unlink()
    os.mkfifo(folder / "a.json")
    cache = Cache(folder)
    assert cache.get("a") is None
    writing = threading.Thread(target=cache.put, args=("a", KEPT), daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive(), "writing waits for a reader of the pipe"
    assert cache.get("a") == KEPT, "the pipe was not replaced"
    cache.put("b", {"text": "x" * (2 << 20)})
    assert cache.get("b") is None


def test_no_link_in_it_is_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    (folder / "a.json").rename(outside)
    (folder / "a.json").symlink_to(outside)
    before = outside.read_text()
    cache = Cache(folder)
    assert cache.get("a") is None, "a link was read"
    cache.put("a", {"registers": 5})
    assert outside.read_text() == before, "a link was written through"
    assert cache.get("a") == {"registers": 5}


def owned_by_another(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def writable_by_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def writable_by_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


@pytest.mark.parametrize("place", [".", "..", "../.."])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(owned_by_another, "belongs to another user (uid 12345)", marks=needs_root),
        (writable_by_group, "others may write"),
        (writable_by_all, "others may write"),
    ],
)
def test_a_folder_of_others_is_not_used_with_one_line(
    folder: Path, place: str, change: Callable[[Path], None], said: str
) -> None:
    change((folder / place).resolve())
    cache = Cache(folder)
    assert cache.get("a") is None, "what others may write was believed"
    cache.put("b", KEPT)
    assert not (folder / "b.json").exists(), "something was kept there"
    assert said in cache.problem
    assert "XDG_CACHE_HOME" in cache.problem
    assert "\n" not in cache.problem


@pytest.mark.parametrize(
    "change",
    [pytest.param(owned_by_another, marks=needs_root), writable_by_group, writable_by_all],
)
def test_an_entry_of_others_is_made_again(folder: Path, change: Callable[[Path], None]) -> None:
    change(folder / "a.json")
    cache = Cache(folder)
    assert cache.get("a") is None, "what others may write was believed"
    cache.put("a", KEPT)
    assert Cache(folder).get("a") == KEPT


def test_a_folder_with_the_sticky_bit_on_the_way_is_fine(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    cache = Cache(tmp_path / "shared" / "mine")
    cache.put("a", KEPT)
    assert Cache(tmp_path / "shared" / "mine").get("a") == KEPT


@needs_root
def test_another_users_link_on_the_way_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert Cache(tmp_path / "link").get("a") == KEPT, "a link of one's own is followed"
    owned_by_another(tmp_path / "link")
    assert Cache(tmp_path / "link").get("a") is None
    assert "another user" in Cache(tmp_path / "link").problem


def test_a_place_that_is_not_a_folder_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "below")
    cache.put("a", {})
    assert "Not a directory" in cache.problem
    assert cache.get("a") is None


def test_what_cannot_be_written_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    cache = Cache(folder)
    monkeypatch.setattr("portagpu.base.files.os.fsync", full)
    cache.put("b", KEPT)
    assert cache.problem.startswith("results are not cached: cannot write ")
    assert cache.get("a") == KEPT, "what is there is still read"


def test_compile_says_that_its_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "portagpu").mkdir()
    (tmp_path / "portagpu").chmod(0o777)
    main(["compile", "--target", "cpu-x86-64"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "the cache" in line]
    assert f"others may write {tmp_path / 'portagpu'} (chmod go-w ends that)" in line
    assert not (tmp_path / "portagpu" / "compile").exists()


def test_an_entry_of_the_form_before_has_no_digest(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(KEPT))
    assert Cache(folder).get("a") is None


@pytest.mark.parametrize("stated", ["", "relative"])
def test_relative_cache_folder_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", stated)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caches.cache_folder("compile") == tmp_path / ".cache" / "portagpu" / "compile"
