"""The diff of ``portagpu port rewrite``: exact where ``patch`` reads it, harmless on a terminal."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("libcst")

from portagpu.cli import main
from portagpu.train.port.rewrite import Rewritten, rewrite
from tests.unit.train.test_port_rewrite import SAMPLES

HEAD: Final = b"import torch\n"
USE: Final = b"torch.cuda.synchronize()"
LONG: Final = b"".join(b"x%d = %d\n" % (n, n) for n in range(30))
SOURCES: Final = {
    "plain": HEAD + USE + b"\n",
    "escape": HEAD + b'RED = "\x1b[31m"\n' + USE + b"\n",
    "escape in the line": HEAD + USE + b"  # \x1b]0;x\x07 \xe2\x80\xae evil \xc2\x9b hidden\n",
    "latin-1": b"# -*- coding: latin-1 -*-\n"
    + HEAD
    + b"x = '\xe9\x85\x9b'\n"
    + USE
    + b"  # \xfc\n",
    "BOM": b"\xef\xbb\xbf" + HEAD + USE + b"\n",
    "CRLF": (HEAD + b"x = 1\n" + USE + b"\n").replace(b"\n", b"\r\n"),
    "CRLF and LF": HEAD + b"x = 1\r\n" + USE + b"\ny = 2\r\n",
    "lone CR": HEAD + b"x = 1\ry = 2\n" + USE + b"  # a\n",
    "CR alone": (HEAD + b"x = 1\n" + USE + b"\ny = 2\n").replace(b"\n", b"\r"),
    "form feed": HEAD + b"\x0c\n" + USE + b"\n\x0c\ny = 2\n",
    "no end": HEAD + USE,
    "no end below": HEAD + USE + b"\ny = 2",
    "separators in texts": HEAD + "x = 'a\u2028b\u2029c\x85d\x1ce'\n".encode() + USE + b"\n",
    "two hunks": HEAD + LONG + USE + b"\n" + LONG + b"torch.cuda.empty_cache()\n",
    "like a hunk": HEAD + b"x = '''\n@@ -1 +1 @@\n--- a\n+++ b\n'''\n" + USE + b"\n",
}
HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def rewritten(path: Path) -> Rewritten:
    (only,) = rewrite([str(path)]).files
    return only


def applied(diff: bytes, before: bytes) -> bytes:
    """``before`` with the hunks of the diff: every line of the diff has to be in its place."""
    lines, old, new = diff.split(b"\n"), before.split(b"\n"), []
    assert lines[0].startswith(b"--- ") and lines[1].startswith(b"+++ ") and lines.pop() == b""
    at, number = 2, 0
    while at < len(lines):
        begin = HUNK.fullmatch(lines[at])
        assert begin is not None, lines[at]
        first, removed, added = int(begin[1]), int(begin[2] or b"1"), int(begin[4] or b"1")
        new += old[number : first - 1]
        number, at = first - 1, at + 1
        while removed or added:
            sign, line = lines[at][:1], lines[at][1:]
            last = at + 1 < len(lines) and lines[at + 1] == b"\\ No newline at end of file"
            if sign in b" -":
                assert old[number] == line, f"{old[number]!r} is not {line!r}"
                assert last == (number == len(old) - 1)
                number, removed = number + 1, removed - 1
            if sign in b" +":
                new.append(line if not last else line + b"\0")
                added -= 1
            at += 1 + last
    return b"\n".join([*new, *old[number:]]).removesuffix(b"\0").replace(b"\0\n", b"")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_diff_gives_what_write_gives(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(source)
    new = rewritten(path)
    new.write()
    assert path.read_bytes() == applied(new.diff, source) != source


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_terminal_obeys_nothing_of_the_source(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "a\x1b[31m\u202e.py"
    path.write_bytes(source)
    shown = rewritten(path).shown_diff
    odd = {each for each in shown if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs")}
    assert odd <= {"\n"}
    assert shown.startswith("--- ") and "pg.synchronize()" in shown


def test_on_a_terminal_the_bytes_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(SOURCES["escape in the line"])
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "portagpu", "port", "rewrite", "a.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    output = b""
    try:
        while chunk := os.read(leader, 65536):
            output += chunk
    except OSError:
        pass  # Linux reports the end of a pseudo-terminal as an I/O error
    finally:
        os.close(leader)
    assert child.wait(timeout=60) == 0, output
    assert b"# \\x1b]0;x\\x07 \\u202e evil \\x9b hidden\r\n" in output
    for odd in ("\x1b", "\x07", "\u202e", "\x9b"):
        assert odd.encode() not in output


def test_lint_shows_what_the_source_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text('import torch\nx.to("cuda")["\u202e\x1b"]\n', encoding="utf-8")
    assert main(["port", "lint", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "\x1b" not in output and "\u202e" not in output


def test_a_diff_is_shown_and_nothing_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(SAMPLES / "before" / "devices.py", tmp_path / "a.py")
    monkeypatch.chdir(tmp_path)
    before = Path("a.py").read_bytes()
    assert main(["port", "rewrite", "a.py"]) == 0
    out, err = capfd.readouterr()
    assert Path("a.py").read_bytes() == before
    assert "not written" in err
    patch = (
        subprocess.run(["patch", "-p0"], input=out.encode(), check=False, capture_output=True)
        if shutil.which("patch")
        else None
    )
    if patch is not None:
        assert patch.returncode == 0, patch.stdout
        expected = (SAMPLES / "after" / "devices.py").read_bytes()
        assert Path("a.py").read_bytes() == expected
