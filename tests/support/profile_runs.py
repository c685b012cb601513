"""Runs ``portagpu profile`` as its engine does, on real processes, with the tests' reader."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from portagpu.traces.profile import ProfileOptions, profile
from tests.support.profile_reader import read

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run

OPERATORS = """
    import torch
    with torch.profiler.record_function("step"):
        torch.randn(8, 8) @ torch.randn(8, 8)
"""


def write_script(folder: Path, text: str = OPERATORS, name: str = "train.py") -> Path:
    """The dedented ``text`` as a file in ``folder``."""
    path = folder / name
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def profiled(folder: Path, *words: str, **options: Any) -> Run:
    """The run of ``python WORDS``, with captures in the folder ``out`` below ``folder``."""
    options = {"tool": "torch", "words": (sys.executable, *words), **options}
    return profile(ProfileOptions(folder=folder / "out", **options), read=read)


def result(run: Run, name: str, device: str | None = None) -> Result:
    """The one result of that name, and of that rank."""
    (found,) = [
        each for each in run.results if each.id == f"profile/{name}" and each.device == device
    ]
    return found


def files(folder: Path) -> list[str]:
    """What is in the folder ``out``, hidden files too, with N for numbers of processes."""
    import re

    return sorted(re.sub(r"pid\d+", "pidN", each.name) for each in (folder / "out").iterdir())
