"""What an install hint says to run, by where pip took this package from."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

import portagpu
from portagpu.base.plugins import install

FOLDER = "in the folder of portagpu's pyproject.toml"


def of(monkeypatch: pytest.MonkeyPatch, text: str | None) -> str:
    class Found:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return text

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Found())
    return install("torch")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # the examples of the specification of direct_url.json, with names of this project
        (
            '{"url": "file:///a/p", "dir_info": {"editable": true}}',
            f"-e '.[torch]' ({FOLDER})",
        ),
        ('{"url": "file:///a/p", "dir_info": {}}', f"'.[torch]' ({FOLDER})"),
        (
            '{"url": "file:///a/portagpu-1-py3-none-any.whl", "archive_info": {}}',
            "'portagpu-1-py3-none-any.whl[torch]' (in the folder of that file)",
        ),
        (
            '{"url": "https://x.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "7"}}',
            "'portagpu[torch] @ git+https://x.org/p.git'",
        ),
        (
            '{"url": "https://x.org/p.whl", "archive_info": {}}',
            "'portagpu[torch] @ https://x.org/p.whl'",
        ),
        (None, "'portagpu[torch]'"),
        ("{", f"'.[torch]' ({FOLDER})"),
    ],
)
def test_the_hint_fits_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    assert of(monkeypatch, text) == f"pip install {said}"


def test_a_checkout_that_pip_did_not_install_is_installed_from_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install("cuda") == f"pip install '.[cuda]' ({FOLDER})"


def test_no_other_place_writes_such_a_command() -> None:
    root = Path(portagpu.__file__).parents[1]
    written = [
        str(path.relative_to(root))
        for folder in ("portagpu", "backends")
        for path in (root / folder).rglob("*.py")
        if re.search(r"pip install ['\"]?portagpu\[", path.read_text("utf-8"))
    ]
    assert written == ["portagpu/base/plugins.py"]
