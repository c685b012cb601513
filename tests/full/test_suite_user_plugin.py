"""The conformance suite among the tests of somebody else's project."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from typing import TYPE_CHECKING

from tests.process.test_suite_user_plugin import QUIRKY, only_cases_of, run_pytest
from tests.process.test_suite_user_plugin import project as project
from tests.support.case_files import copy_cases, write_cases
from tests.support.fake_plugins import install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]


def test_what_is_said_of_the_suite_itself_fails_the_run(project: Path, tmp_path: Path) -> None:
    only_cases_of(project, copy_cases(tmp_path / "cases", "memory_allocator", "rng"))
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
