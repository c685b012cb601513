"""The wheel: it tests, measures and brings up without the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.conftest import CHILD_LIMIT_S, ROOT, build_wheel

pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


def _contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


@pytest.mark.torch
def test_installed_wheel_runs_its_own_cases_and_measures(
    installed: Callable[..., Child],
) -> None:
    ended = installed(
        "-m", "portagpu", "conform", "--backend", "cpu", "--only", "rng", "--json", "-"
    )
    conformance = json.loads(ended.ok())
    assert conformance["counts"]["PASS"] > 20
    ended = installed(
        "-m", "portagpu", "bench", "--only", "launch", "--backend", "cpu", "--json", "-"
    )
    measures = {entry["id"]: entry for entry in json.loads(ended.out)["results"]}
    assert measures["launch/issue"]["value"] > 0, ended.err


@pytest.mark.torch
def test_installed_wheel_brings_a_machine_up_to_the_gate_that_fails(
    installed: Callable[..., Child],
) -> None:
    ended = installed("-m", "portagpu", "bringup", "--target", "amd-mi300x", "--json", "-")
    assert json.loads(ended.out)["first_failed"] == "identity/target", ended.err
    assert ended.code == 1


def test_source_distribution_builds_the_same_wheel(portagpu_wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=CHILD_LIMIT_S,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    again = build_wheel(source, tmp_path / "again")
    assert _contents(again) == _contents(portagpu_wheel)


def test_installed_wheel_shows_what_the_project_has_proven(
    installed: Callable[..., Child],
) -> None:
    shown = json.loads(installed("-m", "portagpu", "matrix", "show", "--json", "-").ok())
    rows = {each["id"]: each for each in shown["targets"]}
    assert "executed" in rows["cpu-x86-64"]["badges"]
    assert rows["nvidia-h100-sxm"]["compiled_kernels"]
    assert rows["amd-mi300x"]["recorded"]
