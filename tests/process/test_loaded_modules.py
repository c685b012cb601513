"""How many modules of its own each verb loads: for ``--help``, and for work on a small input.

An engine that is loaded for one helper, or for the default of an option, shows here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from portagpu.base.subprocesses.start import python_environment
from portagpu.cli._verbs import VERBS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COUNT: Final = """
import json, os, signal, sys
# what others wrote is imported once for all forks: it does not count
import click, importlib.metadata, numpy, pyarrow, rich.console, rich.table, tomllib
import portagpu.cli._verbs

def loaded(words):
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            signal.alarm(100)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            code = portagpu.cli.main(words)
            own = sorted(name for name in sys.modules if name.startswith("portagpu"))
            with open(writer, "w") as file:
                json.dump([code, own], file)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        found = json.load(file)
    os.waitpid(child, 0)
    return found

json.dump([loaded(words) for words in json.load(sys.stdin)], sys.stdout)
"""
ROOMS: Final = {
    f"portagpu.{path.parent.name}" for path in (ROOT / "portagpu").glob("*/__init__.py")
}
"""Folders of packages: modules without code, which do not count."""
WORK: Final = {
    "info --replay gpus.json": (0, 152),
    "record recorded": (0, 118),
    "monitor --dashboard -": (0, 16),
    "bringup --list": (0, 35),  # the words of levels among them
    "health --gate healthcheck --replay gpus.json": (0, 36),
    "conform --list": (0, 75),
    "bench --list": (0, 68),
    "screen --list": (0, 66),
    "profile --print --with nsys --tool-version 2025.1 -- true": (0, 49),
    "collectives choose --target nvidia-h100-sxm --ranks 16 --bytes 1M": (0, 66),
    "collectives verify --replay all_reduce.txt": (0, 108),
    "collectives doctor log": (3, 76),
    "trace summary a.sqlite": (0, 73),
    "trace diff a.sqlite a.sqlite": (3, 76),
    "port lint program.py": (1, 37),
    "occupancy --arch sm_90 --threads 256 --regs 64 --plot plot.svg": (0, 39),
    "plan --model llama-3.1-8b --target nvidia-h100-sxm --ranks 8 --batch 64": (0, 73),
    "targets": (0, 32),
    "docs": (0, 13),
    "matrix show x.json": (0, 134),
    "matrix report x.json y.json -o matrix.html": (0, 132),
    "matrix history import --store store.db x.json": (0, 105),
    "fleet scripts -o scripts": (0, 33),
    "fleet report x.json": (0, 104),
    "report x.json": (0, 106),
    "compile --arch nonsense": (2, 76),
}
"""Words of a call -> its exit code, and the most modules that it may load in this process.

Who lets a verb load fewer may lower its number.
"""


def loaded(calls: Sequence[str], folder: Path) -> dict[str, tuple[int, list[str]]]:
    """Words of a call -> its exit code, and the modules of this project that it loaded."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", COUNT],
        input=json.dumps([each.split() for each in calls]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=folder,
        env=python_environment({"HOME": str(folder)}),
    )
    assert done.returncode == 0, done.stderr
    return {
        call: (code, [name for name in modules if name not in ROOMS])
        for call, (code, modules) in zip(calls, json.loads(done.stdout), strict=True)
    }


def test_each_verb_does_some_work_here() -> None:
    assert {call.split()[0] for call in WORK} == set(VERBS)
