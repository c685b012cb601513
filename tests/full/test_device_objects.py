"""Streams, events and ranges as types, as a user's own mypy sees the installed package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("mypy")

SCRIPT = ROOT / "tests/support/typed_script.py"


def test_mypy_strict_knows_the_types(tmp_path):
    text = SCRIPT.read_text("utf-8")
    wrong = [n for n, line in enumerate(text.splitlines(), 1) if "# type: ignore" in line]
    (tmp_path / "script.py").write_text(text.replace("# type: ignore", "#"), encoding="utf-8")
    words = ("--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path / "cache"))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "script.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    ).stdout
    errors = [line.partition(" error:")[0] for line in found.splitlines() if " error:" in line]
    assert errors == [f"script.py:{number}:" for number in wrong], found
    assert len(errors) == 2
