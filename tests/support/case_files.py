"""Files of conformance cases that a test writes, and what a run of them gave."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portagpu.base.paths import matrix_dir
from portagpu.runs.engine import Progress
from portagpu.suites import conformance as suite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from portagpu.runs.engine import OpenedDevice
    from portagpu.runs.results.run import Result

HEAD = "import os, signal, sys, threading, time\nfrom portagpu.suites.conformance import *\n"


def write_cases(folder: Path, text: str, name: str = "test_rng.py") -> Path:
    """A folder of cases with that one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(HEAD + textwrap.dedent(text), "utf-8")
    return folder


def copy_cases(folder: Path, *names: str) -> Path:
    """A folder with those files of the suite alone, which is collected faster than all of them."""
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copy(matrix_dir() / "conformance" / f"test_{name}.py", folder)
    return folder


def only_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have a folder's files be the whole suite for what this process runs."""
    for module in ("engine", "runner"):
        monkeypatch.setattr(f"portagpu.suites.conformance.{module}.cases_folder", lambda _: folder)
    monkeypatch.setattr("portagpu.suites.conformance.runner.missing_cases", lambda _: "")


def by_id(results: list[Result]) -> dict[str, Result]:
    """The results by their ids, of which none is there twice."""
    found = {each.id: each for each in results}
    assert len(found) == len(results), "a case has two results"
    return found


@dataclass
class Recorder(Progress):
    """What an engine reported; ``ended`` says why nothing more is to begin."""

    ended: Callable[[], str] = str
    devices: list[OpenedDevice] = field(default_factory=list)
    begun: list[tuple[str, int, int]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def opened(self, device: OpenedDevice) -> None:
        self.devices.append(device)

    def item_begins(self, name: str, number: int, total: int) -> None:
        self.begun.append((name, number, total))

    def result_added(self, result: Result) -> None:
        self.results.append(result)

    def stop_reason(self) -> str:
        return self.ended()


def conform(
    backend: str, target: str | None = None, *, ended: Callable[[], str] = str, **options: Any
) -> list[Result]:
    """The results of the suite with these options."""
    asked = suite.ConformOptions(backend=backend, target=target, **{"seed": 0, **options})
    return suite.conform(asked, Recorder(ended)).results
