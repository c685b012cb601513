"""How many modules of its own each verb loads: for ``--help``, and for work on a small input.

An engine that is loaded for one helper, or for the default of an option, shows here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import click
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from portagpu.base.subprocesses.start import python_environment
from portagpu.cli import VERBS
from portagpu.cli._call import app
from portagpu.runs.results.run import Result, Verdict, new_run
from tests.conftest import ROOT
from tests.support import trace_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COUNT: Final = """
import json, os, signal, sys
# what others wrote is imported once for all forks: it does not count
import click, importlib.metadata, numpy, pyarrow, rich.console, rich.table, tomllib
import portagpu.cli._call

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
HELP: Final = 22
"""For the help of any verb: the command line itself, and the words of its options."""
ROOMS: Final = {
    f"portagpu.{path.parent.name}" for path in (ROOT / "portagpu").glob("*/__init__.py")
}
"""Folders of packages: modules without code, which do not count."""
WORK: Final = {
    "info --replay gpus.json": (0, 143),
    "record recorded": (0, 124),
    "monitor --dashboard -": (0, 18),
    "bringup --list": (0, 34),
    "health --gate healthcheck --replay gpus.json": (0, 36),
    "conform --list": (0, 74),
    "bench --list": (0, 69),
    "screen --list": (0, 71),
    "profile --print --with nsys --tool-version 2025.1 -- true": (0, 50),
    "collectives choose --target nvidia-h100-sxm --ranks 16 --bytes 1M": (0, 69),
    "collectives verify --replay all_reduce.txt": (0, 107),
    "collectives doctor log": (3, 66),
    "trace summary a.sqlite": (0, 73),
    "trace diff a.sqlite a.sqlite": (3, 75),
    "port lint program.py": (1, 34),
    "occupancy --arch sm_90 --threads 256 --regs 64 --plot plot.svg": (0, 41),
    "plan --model llama-3.1-8b --target nvidia-h100-sxm --ranks 8 --batch 64": (0, 75),
    "targets": (0, 33),
    "docs": (0, 24),
    "matrix show x.json": (0, 135),
    "matrix report x.json y.json -o matrix.html": (0, 138),
    "matrix history import --store store.db x.json": (0, 56),
    "fleet scripts -o scripts": (0, 34),
    "fleet report x.json": (0, 104),
    "report x.json": (0, 112),
    "compile --arch nonsense": (2, 80),
}
"""Words of a call -> its exit code, and the most modules that it may load in this process.

Who lets a verb load fewer may lower its number.
"""


def write_inputs(folder: Path) -> None:
    """Write what the calls of ``WORK`` read."""
    trace_samples.write_nsys(trace_samples.timeline(64), folder / "a.sqlite")
    for name in ("x", "y"):
        run = new_run(["portagpu", "bench"], target="cpu-x86-64")
        run.add(Result(id="gemm/fp32[64]", suite="performance", area="gemm", verdict=Verdict.PASS))
        run.finish().write_json(folder / f"{name}.json")
    (folder / "program.py").write_text("import torch\n\ntorch.cuda.synchronize()\n")
    (folder / "log").write_text("nothing of note\n")
    texts = ROOT / "tests" / "vendor_texts"
    shutil.copy(texts / "perf_tables" / "all_reduce-2.17.1-8-ranks.txt", folder / "all_reduce.txt")
    shutil.copy(texts / "formats" / "amd_smi_json" / "static-7.14.json", folder / "gpus.json")


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


def leaves(command: click.Command, *before: str) -> Iterator[str]:
    """The names of all verbs, as "matrix history runs"."""
    if not isinstance(command, click.Group):
        yield " ".join(before)
        return
    context = click.Context(command)
    for verb in command.list_commands(context):
        below = command.get_command(context, verb)
        assert below is not None
        yield from leaves(below, *before, verb)


def test_each_verb_does_some_work_here() -> None:
    assert {call.split()[0] for call in WORK} == set(VERBS)


def test_a_verb_loads_what_it_needs(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    found = loaded(list(WORK), tmp_path)
    expected = {call: code for call, (code, _) in WORK.items()}
    assert {call: code for call, (code, _) in found.items()} == expected
    many = {call: modules for call, (_, modules) in found.items() if len(modules) > WORK[call][1]}
    assert not many, [f"{call}: {len(modules)} modules" for call, modules in many.items()]


def test_help_loads_no_engine(tmp_path: Path) -> None:
    found = loaded([f"{verb} --help" for verb in leaves(app)], tmp_path)
    assert len(found) > 40
    assert {code for code, _ in found.values()} == {0}
    many = {call: modules for call, (_, modules) in found.items() if len(modules) > HELP}
    assert not many
