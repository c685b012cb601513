"""The tox environments that are generated from the targets, and the Python that they run in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tox")

from typing import TYPE_CHECKING

from tests.process.test_tox_matrix import SUITES
from tests.process.test_tox_matrix import forks as forks
from tests.process.test_tox_matrix import tox as tox
from tests.process.test_tox_matrix import vendor as vendor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child


def test_plain_tox_runs_lint_and_cpu(tox: Callable[..., Child]) -> None:
    assert tox("list", "-d", "-q", "--no-desc", real=True).ok().split() == ["lint", "cpu"]


@pytest.mark.parametrize(
    ("target", "folder", "deps"),
    [
        ("nvidia-v100-sxm2", "compile-nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu12"),
        ("nvidia-t4", "compile", ""),
        ("amd-mi300x", "compile", ""),
    ],
)
def test_compile_environment_installs_what_its_target_needs(
    tox: Callable[..., Child], target: str, folder: str, deps: str
) -> None:
    keys = ["skip_install", "deps", "extras", "env_dir", "commands"]
    said = tox("config", "-e", f"{target}-compile", "-k", *keys).ok()
    settings = {
        key.strip(): value.strip()
        for key, value in (line.split("=", 1) for line in said.splitlines() if "=" in line)
    }
    assert (settings["skip_install"], settings["extras"]) == ("False", "compile")
    assert settings["deps"] == deps
    assert Path(settings["env_dir"]).name == folder
    assert settings["commands"] == f"python -P -m portagpu compile --target {target}"


@pytest.mark.parametrize(("suite", "verb"), SUITES.items())
def test_generated_environment_runs_the_named_python_and_keeps_its_exit_code(
    tox: Callable[..., Child], vendor: tuple[str, Path], suite: str, verb: str
) -> None:
    program, record = vendor
    ended = tox("run", "-e", f"amd-mi300x-{suite}", "--", "--json", "-", python=program)
    assert ended.code == 3, f"INCONCLUSIVE must stay 3\n{ended.out}\n{ended.err}"
    words = record.read_text("utf-8").splitlines()
    fixed = ["--seed", "0"] if suite == "conformance" else []
    assert words == ["-P", "-m", "portagpu", verb, "--target", "amd-mi300x", *fixed, "--json", "-"]
