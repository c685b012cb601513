"""The conformance suite among the tests of somebody else's project."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.case_files import copy_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

PLUGIN = "portagpu.suites.conformance.user_plugin"
BROKEN = """
from portagpu_cpu.plugin import CpuPlugin
from portagpu_cpu.backend import CpuBackend

class Faulty(CpuBackend):
    __slots__ = ()
    def mem_get_info(self):
        return (-1, 0)

class Broken(CpuPlugin):
    name = "broken"
    def open(self, index):
        handle = Faulty(self, index)
        handle.name = "broken"
        return handle

PLUGIN = Broken()
"""


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


def only_cases_of(project: Path, cases: Path) -> None:
    """Give the project a suite of these files alone, which is collected faster than all of it."""
    (project / "conftest.py").write_text(
        "from pathlib import Path\nimport portagpu.suites.conformance.runner as runner\n"
        f"runner._folder = lambda folder: Path({str(cases)!r})\n"
        "runner.missing_cases = lambda counts: ''\n",
        encoding="utf-8",
    )


def test_without_the_option_nothing_is_added(project: Path) -> None:
    done = run_pytest(project, "-q")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.usefixtures("started")
def test_cases_run_next_to_the_projects_tests_and_are_selected_in_the_same_way(
    project: Path,
) -> None:
    chosen = "mine or rng/seed-repeats or graphs"
    done = run_pytest(project, "--portagpu-backend", "cpu", "-k", chosen, "-v", "-rs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_mine.py::test_mine PASSED" in done.stdout
    assert "portagpu::rng/seed-repeats[rand] PASSED" in done.stdout
    assert "does not claim graphs" in done.stdout, "an unclaimed capability is a skip with reason"
    (counted,) = [line for line in done.stdout.splitlines() if "collected " in line]
    assert "-" not in counted, "fewer are counted as collected than there are"


def test_a_failing_case_shows_its_sentence_and_no_traceback(project: Path, tmp_path: Path) -> None:
    only_cases_of(project, copy_cases(tmp_path / "cases", "random_programs"))
    path = tmp_path / "plugins"
    path.mkdir()
    entry_points = {"broken": "portagpu_broken:PLUGIN"}
    install(path, "portagpu-broken", entry_points, {"portagpu_broken": BROKEN})
    options = ("--portagpu-backend", "broken", "-k", "memory/random")
    done = run_pytest(project, *options, path=path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED portagpu::memory/random-programs" in done.stdout
    assert "user_plugin.py" not in done.stdout


@pytest.mark.parametrize("options", [("-n", "1"), ("--dist", "load", "--tx", "popen")])
def test_several_processes_are_refused(project: Path, options: tuple[str, ...]) -> None:
    pytest.importorskip("xdist")
    done = run_pytest(project, "--portagpu-backend", "cpu", "-p", "xdist", *options)
    assert done.returncode == 4, done.stdout
    assert "run pytest without -n" in done.stderr
    assert run_pytest(project, "-p", "xdist", *options).returncode == 0


QUIRKY = """
from portagpu.devices.contract import Override
from portagpu_cpu.plugin import CpuPlugin

class Quirky(CpuPlugin):
    name = "quirky"
    overrides = (
        Override(pattern="rng/*", outcome="undefined", reason="it drifts", url="https://x.org"),
    )
    def open(self, index):
        handle = super().open(index)
        handle.name = "quirky"
        return handle

PLUGIN = Quirky()
"""


def test_a_backend_that_does_not_exist_is_one_line(project: Path) -> None:
    done = run_pytest(project, "--portagpu-backend", "cpq")
    assert done.returncode == 4
    assert "unknown backend 'cpq': did you mean 'cpu'?" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
