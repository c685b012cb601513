"""The diff of ``portagpu port rewrite``: exact where ``patch`` reads it, harmless on a terminal."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from typing import Final

from portagpu.cli import main
from tests.process.test_port_patch import SOURCES, rewritten

NAMES: Final = (
    "a.py",
    "with blanks in it.py",
    "größe-é.py",
    'quo"te.py',
    "back\\slash.py",
    "t\tab.py",
)


@pytest.mark.processes(15, "patch, diff and git for each change")
@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
@pytest.mark.parametrize("name", NAMES)
def test_patch_applies_the_diff(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, source in SOURCES.items():
        path = Path(name)
        path.write_bytes(source)
        main(["port", "rewrite", name])
        patch = capfdbinary.readouterr().out
        rewritten(path).write()
        wanted = path.read_bytes()
        path.write_bytes(source)
        done = subprocess.run(
            ["patch", "-p0", "--fuzz=0"], input=patch, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, (kind, done.stdout)
        assert path.read_bytes() == wanted, kind
        assert [*tmp_path.iterdir()] == [tmp_path / name], f"{kind}: patch left something"
