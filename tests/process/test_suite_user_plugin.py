"""The conformance suite among the tests of somebody else's project."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

PLUGIN = "portagpu.suites.conformance.user_plugin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    return folder


def run_pytest(
    folder: Path, *options: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    if path is not None:
        paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", PLUGIN, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_without_the_option_nothing_is_added(project: Path) -> None:
    done = run_pytest(project, "-q")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_backend_that_does_not_exist_is_one_line(project: Path) -> None:
    done = run_pytest(project, "--portagpu-backend", "cpq")
    assert done.returncode == 4
    assert "unknown backend 'cpq': did you mean 'cpu'?" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
