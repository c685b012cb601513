"""Files of conformance cases that a test writes, and what a run of them gave."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.results.run import Result

HEAD = "import os, signal, sys, threading, time\nfrom portagpu.suite import *\n"


def write_cases(folder: Path, text: str, name: str = "test_rng.py") -> Path:
    """A folder of cases with that one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(HEAD + textwrap.dedent(text), "utf-8")
    return folder


def by_id(results: list[Result]) -> dict[str, Result]:
    """The results by their ids, of which none is there twice."""
    found = {each.id: each for each in results}
    assert len(found) == len(results), "a case has two results"
    return found
