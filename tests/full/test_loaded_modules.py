"""How many modules of its own each verb loads: for ``--help``, and for work on a small input.

An engine that is loaded for one helper, or for the default of an option, shows here."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import shutil
from typing import TYPE_CHECKING, Final

import click

from portagpu.cli._verbs import app
from portagpu.runs.results.run import Result, Verdict, new_run
from tests.conftest import ROOT
from tests.process.test_loaded_modules import WORK, loaded
from tests.support import trace_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("started")


HELP: Final = 22
"""For the help of any verb: the command line itself, and the words of its options."""


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
