"""``portagpu bringup``: the hardware bring-up checklist, live or replayed, with one verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import (
    STDOUT,
    effort_of,
    finite,
    human_stream,
    json_option,
    say,
    screen,
    write_json,
)
from portagpu.cli._complete import complete_gate, complete_target
from portagpu.errors import BundleError
from portagpu.results.wording import failures_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.bringup import Gate
    from portagpu.results.run import Run


@click.command()
@click.option("--quick", is_flag=True, help="Some 40 s when quiet; default.")
@click.option("--full", is_flag=True, help="All cases, more memory, longer load.")
@click.option("--backend", metavar="NAME", help="The backend to test, instead of the default one.")
@click.option(
    "--target",
    metavar="ID",
    shell_complete=complete_target,
    help="The target that this machine has to be.",
)
@click.option(
    "--expect-devices",
    type=click.IntRange(min=1),
    metavar="N",
    help="Fail unless exactly N devices are there.",
)
@click.option(
    "--replay",
    multiple=True,
    metavar="PATH",
    help="Judge a recording instead of this machine; several of one machine are read together.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="GATE",
    shell_complete=complete_gate,
    help="Run this gate and those it needs; may be given several times. The run is partial.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="GATE",
    shell_complete=complete_gate,
    help="Leave this gate out; may be given several times. The run is partial.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell every result below its gate.")
@click.option("--list", "list_only", is_flag=True, help="List the gates and run none.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1, 86_400),
    callback=finite,
    metavar="SECONDS",
    help="How long the sustained load takes, instead of 10 s, or 120 s with --full.",
)
@click.option("--strict", is_flag=True, help="Measures with nothing to judge by lower the verdict.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write result.json, junit.xml and report.html there; with --full on a machine also a "
    "bundle.",
)
@json_option
def bringup(
    quick: bool,
    full: bool,
    backend: str | None,
    target: str | None,
    expect_devices: int | None,
    replay: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_only: bool,
    verbose: bool,
    duration_s: float | None,
    strict: bool,
    out: Path | None,
    json_to: str | None,
) -> int:
    """Run the ordered gates on this machine and give one verdict.

    The exit code is 0 for PASS, 1 for FAIL or ERROR, 3 when something was not judged, 130 when
    interrupted. With --out, a valid result.json is there from the start and grows gate by gate.

    Without a torch that can use this machine's devices, and with --replay, nothing runs: the gates
    that can judge files do, and the others are INCONCLUSIVE, so that the exit code is 1 or 3.
    """
    effort = effort_of(quick, full)
    from portagpu.bringup.gates import UnknownGate, left_out, load_gates
    from portagpu.cli._running import Files, deliver, usage_errors

    gates = load_gates()
    if list_only:
        _list(gates, json_to)
        return 0
    with usage_errors(UnknownGate):
        left_out(gates, only, skip)
    if replay and backend is not None:
        raise click.UsageError("--backend tests a machine; a recording has none to run")
    from portagpu.bringup import BringupOptions
    from portagpu.bringup import bringup as run_bringup
    from portagpu.cli._bringup_view import view
    from portagpu.recordings.replay import Recording

    options = BringupOptions(
        effort=effort,
        backend=backend,
        target=target,
        expect_devices=expect_devices,
        strict=strict,
        only=only,
        skip=skip,
        duration_s=duration_s,
        command=["portagpu", *sys.argv[1:]],
        replay=Recording(*replay) if replay else None,
    )
    stream = human_stream(json_to)
    files = Files(json_to, folder=out)
    options.load_target()
    files.check()
    run = run_bringup(options, view(screen(stream), stream, files, gates, verbose=verbose))
    written = deliver(run, files, ["", *failures_text(run.results), run.summary_line()])
    say([f"wrote {path}" for path in written], stream)
    if effort == "full" and out is not None and not (replay or only or skip):
        say([bundle_line(run, effort, out)], stream)
    return run.exit_code


def _list(gates: Sequence[Gate], json_to: str | None) -> None:
    entries = [
        {
            "id": gate.id,
            "title": gate.title,
            "spec": gate.spec,
            "needs": list(gate.needs),
            "judges_recordings": gate.replay is not None,
        }
        for gate in gates
    ]
    write_json({"schema": "portagpu.gates/1", "gates": entries}, json_to)
    if json_to == STDOUT:
        return
    for gate in gates:
        click.echo(f"{gate.id:<13} {gate.spec}")
        click.echo(f"{'':<13} needs {' and '.join(gate.needs) or 'nothing'}")


def bundle_line(run: Run, effort: str, folder: Path) -> str:
    """What became of the bundle: a run is what it is without one."""
    from portagpu.bundle import write_bundle

    try:
        return f"wrote {write_bundle(run, effort, folder)}"
    except BundleError as error:
        return f"no bundle: {error}"
