"""``portagpu bringup``: the hardware bring-up checklist, live or replayed, with one verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.base.errors import BundleError
from portagpu.cli._common import (
    STDOUT,
    check_finite,
    complete_gate,
    expect_devices_option,
    live_console,
    print_lines,
    replay_option,
    run_json_option,
    strict_option,
    target_option,
    text_stream,
    usage_errors,
    write_json,
)
from portagpu.cli._levels import level_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.checks.bringup import Gate
    from portagpu.runs.results.run import Run


_DEEP_S: Final = 1800.0
"""How long the load of the level deep lasts without ``--duration``."""


@click.command()
@level_option(
    {"quick": "default", "full": "full"},
    smoke="what only reads the machine, in seconds",
    default="a minute on an idle CPU, two on GPUs",
    full="all cases, more memory, a longer load",
    deep="full, with half an hour of load",
)
@click.option("--backend", metavar="NAME", help="Test this backend. Default: this machine's.")
@target_option("Fail unless this machine is that target.")
@expect_devices_option("Fail unless there are exactly N devices.")
@replay_option("Judge a recording instead of this machine.")
@click.option(
    "--only",
    multiple=True,
    metavar="GATE",
    shell_complete=complete_gate,
    help="Run this gate, or those that a pattern with * and ? fits, and those they need. May be "
    "repeated. The run is partial.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="GATE",
    shell_complete=complete_gate,
    help="Leave this gate out. May be repeated. The run is partial.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print every result below its gate.")
@click.option("--list", "list_only", is_flag=True, help="List the gates and exit.")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1, 86_400),
    callback=check_finite,
    metavar="SECONDS",
    help="Duration of the sustained load. Default: 10 s (5 s on a CPU), 120 s with --level full.",
)
@strict_option
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write result.json, junit.xml and report.html to this folder; with --level full also "
    "a bundle, unless a recording is judged.",
)
@run_json_option
def bringup(
    level: str,
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
    """Run the ordered bring-up checks (gates) on this machine and print one verdict.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    With --out, result.json is valid from the start and grows with every gate.

    With --replay, or without a torch that can use this machine's devices, nothing runs on a device.
    Gates that can judge files do so; the others are INCONCLUSIVE, so the exit code is 1 or 3.
    """
    effort = "full" if level in ("full", "deep") else "quick"
    from portagpu.checks.bringup.gates import (
        UnknownGate,
        fitting,
        left_out_gates,
        load_gates,
        with_load_duration,
    )
    from portagpu.cli._run_output import Files, deliver

    gates = load_gates()
    if list_only:
        _list(gates, json_to)
        return 0
    by_level = level == "smoke" and not only
    if by_level:
        only = tuple(gate.id for gate in gates if gate.replay is not None)
    if level == "deep" and duration_s is None:
        duration_s = _DEEP_S
    if duration_s is not None:
        gates = tuple(with_load_duration(gate, duration_s) for gate in gates)
    with usage_errors(UnknownGate):
        only, skip = fitting(gates, only), fitting(gates, skip)
        absent = left_out_gates(gates, only, skip)
    if replay and backend is not None:
        raise click.UsageError("--backend needs a machine: leave it out with --replay")
    from portagpu.checks.bringup import BringupOptions
    from portagpu.checks.bringup import bringup as run_bringup
    from portagpu.checks.recordings.replay import Recording
    from portagpu.cli._bringup_view import progress_view
    from portagpu.runs.results.wording import failures_text

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
        asked="--level smoke" if by_level else "",
    )
    stream = text_stream(json_to)
    files = Files(json_to, folder=out)
    options.load_target()
    files.check()
    run = run_bringup(
        options,
        progress_view(
            live_console(stream),
            stream,
            files,
            gates,
            effort=effort,
            absent=absent,
            verbose=verbose,
        ),
    )
    written = deliver(run, files, ["", *failures_text(run.results), run.summary_line()])
    print_lines([f"wrote {path}" for path in written], stream)
    if effort == "full" and out is not None and not (replay or only or skip):
        print_lines([bundle_line(run, effort, out)], stream)
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
    """Write the bundle; the line says where it is, or why there is none."""
    from portagpu.reports.bundles import write_bundle

    try:
        return f"wrote {write_bundle(run, effort, folder)}"
    except BundleError as error:
        return f"no bundle: {error}"
