"""The conformance suite among the tests of somebody else's project."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from tests.process.test_suite_user_plugin import project as project
from tests.process.test_suite_user_plugin import run_pytest
from tests.support.case_files import copy_cases, write_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


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


def only_cases_of(project: Path, cases: Path) -> None:
    """Give the project a suite of these files alone, which is collected faster than all of it."""
    (project / "conftest.py").write_text(
        "from pathlib import Path\nfrom portagpu.suites.conformance import engine, runner\n"
        f"engine.cases_folder = runner.cases_folder = lambda folder: Path({str(cases)!r})\n"
        "runner.missing_cases = lambda counts: ''\n",
        encoding="utf-8",
    )


def test_what_is_said_of_the_suite_itself_fails_the_run(project: Path, tmp_path: Path) -> None:
    only_cases_of(project, copy_cases(tmp_path / "cases", "memory", "rng"))
    path = tmp_path / "plugins"
    path.mkdir()
    install(path, "portagpu-quirky", {"quirky": "quirky:PLUGIN"}, {"quirky": QUIRKY})
    options = ("--portagpu-backend", "quirky", "-k", "rng/seed-repeats or memory/summary-is-a-text")
    done = run_pytest(project, *options, path=path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED portagpu::suite" in done.stdout
    assert "suite/unjudged-rng: overrides" in done.stdout
    again = run_pytest(project, *options, "-p", "cacheprovider", "--lf", path=path)
    assert "FAILED portagpu::suite" in again.stdout, "what failed last time leaves the item out"
    strict = run_pytest(project, *options, "--portagpu-strict", path=path)
    assert "FAILED portagpu::rng/seed-repeats[rand]" in strict.stdout


def test_strict_fails_what_was_not_judged(project: Path, tmp_path: Path) -> None:
    options = ("--portagpu-backend", "cpu", "-k", "here")
    text = (
        '@case("memory/not-here", spec="Needs another machine.")\n'
        'def test_not_here(gpu): raise NotHere("needs another machine")\n'
        '@case("memory/here", spec="Needs nothing.")\ndef test_here(gpu): pass\n'
    )
    only_cases_of(project, write_cases(tmp_path / "cases", text, "test_memory.py"))
    done = run_pytest(project, *options, "-rs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "INCONCLUSIVE: needs another machine" in done.stdout
    strict = run_pytest(project, *options, "--portagpu-strict")
    assert strict.returncode == 1, strict.stdout + strict.stderr
    assert "not judged: needs another machine" in strict.stdout


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
