"""The digest of the installed code, of a distribution that is laid out here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.reports.bundles.content import code_sha256

if TYPE_CHECKING:
    from pathlib import Path

CODE = {
    "portagpu/__init__.py": "",
    "portagpu/cli/conform.py": "x = 1\n",
    "portagpu/matrix/targets/cpu.toml": "id = 'cpu'\n",
    "portagpu/pytest.ini": "[pytest]\n",
}
OTHERS = {
    "portagpu/README.md": "text",
    "portagpu-1.dist-info/RECORD": "",
    "../../bin/portagpu.py": "of the environment",
}


class Installed:
    """What importlib.metadata has of a distribution."""

    def __init__(self, folder: Path, files: dict[str, str] | None) -> None:
        for name, text in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        self.files = None if files is None else [self.path(folder, name) for name in files]

    @staticmethod
    def path(folder: Path, name: str) -> importlib.metadata.PackagePath:
        found = importlib.metadata.PackagePath(name)
        found.dist = type("D", (), {"locate_file": lambda _, each: folder / each})()  # type: ignore[assignment]
        return found


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(files: dict[str, str] | None) -> Path:
        folder = tmp_path / "env/lib/site"
        folder.mkdir(parents=True)
        found = Installed(folder, files)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _: found)
        return folder

    return install


def test_it_is_of_the_names_and_digests_of_code_and_tables(installed: Any) -> None:
    installed(CODE | OTHERS)
    each = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in CODE.items()}
    # the canonical form of JSON of such names: keys in order, no blanks (RFC 8785)
    text = json.dumps(each, sort_keys=True, separators=(",", ":"))
    assert code_sha256() == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("files", [None, {}, OTHERS, {"portagpu/cli/conform.py": "x = 1\n"}])
def test_an_installation_that_lists_no_package_has_none(installed: Any, files: Any) -> None:
    installed(files)
    assert code_sha256() is None


def test_a_file_that_is_gone_leaves_none(installed: Any) -> None:
    folder: Path = installed(CODE)
    (folder / "portagpu/cli/conform.py").unlink()
    assert code_sha256() is None
