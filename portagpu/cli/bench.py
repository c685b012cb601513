"""``portagpu bench``: the performance suite on this machine's device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TextIO

import click
from click.core import ParameterSource

from portagpu.cli._common import (
    complete_measure,
    folder_option,
    junit_option,
    print_lines,
    require_torch,
    results_line,
    run_json_option,
    strict_option,
    target_option,
    terminal,
    text_stream,
    usage_errors,
)
from portagpu.cli._levels import level_option, say_old

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run

_SMOKE: Final = ("gemm", "memory")
"""The areas of the level smoke."""


@click.command()
@click.argument("names", nargs=-1, metavar="[RESULT ...]", shell_complete=complete_measure)
@click.option(
    "--only",
    multiple=True,
    metavar="AREA|ID",
    shell_complete=complete_measure,
    help="Measure only this area, metric or id, or what a pattern with * and ? fits. May be "
    "repeated.",
)
@level_option(
    {"quick": "default", "full": "full"},
    smoke="matrix products and memory, within the limits of default",
    default="everything, in at most three minutes",
    full="more samples and sizes, in minutes",
    deep="as full",
)
@click.option("--backend", metavar="NAME", help="Measure this backend. Default: this machine's.")
@click.option(
    "--index",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="The device for single-device measures. Default: 0.",
)
@click.option(
    "--world",
    type=click.IntRange(min=1, max=4096),
    metavar="N",
    help="Number of ranks for collectives. Default: one per device, or 2 if ranks share one.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Seed of the order in which the measures run. Default: a new one, which is recorded.",
)
@target_option("Judge by this target; INCONCLUSIVE if this machine is a different one.")
@junit_option
@strict_option
@click.option(
    "--peers",
    is_flag=True,
    help="Measure nothing: compare the devices and hosts of saved RESULTs with each other.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Measure nothing: print expectations for a target's file from saved RESULTs of it.",
)
@click.option("--list", "list_only", is_flag=True, help="List the metrics and exit.")
@folder_option
@run_json_option
def bench(
    names: tuple[str, ...],
    only: tuple[str, ...],
    backend: str | None,
    index: int,
    world: int | None,
    level: str,
    seed: int | None,
    target: str | None,
    junit: str | None,
    strict: bool,
    peers: bool,
    calibrate: bool,
    list_only: bool,
    out: Path | None,
    json_to: str | None,
) -> int:
    """Measure this device: matrix products, memory, transfers, launches, kernels, attention,
    operators, training, tuning and collectives.

    Computed values are checked before a time counts, and measured values are judged by the
    target's expectations. RESULT is for --peers and --calibrate: files that --json wrote, or
    folders of --out.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    if peers or calibrate:
        return _from_results(names, peers, calibrate, json_to, junit)
    if names:
        say_old(f"bench {names[0]}", f"bench --only {names[0]}")
    only = (*only, *names)
    if list_only:
        return _list(only)
    if level == "smoke" and not only:
        only = _SMOKE
    effort = "full" if level in ("full", "deep") else "quick"
    require_torch("bench")
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.facts.host import read_host
    from portagpu.runs.engine import UnknownDevice
    from portagpu.suites import performance as engine

    options = engine.BenchOptions(
        names=only,
        backend=backend,
        index=index,
        world=world,
        effort=engine.Effort(effort),
        seed=seed,
        target=target,
        strict=strict,
        command=["portagpu", *sys.argv[1:]],
    )
    busy = read_host().busy
    files = Files(json_to, junit, out)
    with usage_errors(engine.UnknownMeasure, UnknownDevice):
        run = engine.run(options, View(files))
    stream = text_stream(json_to)
    written = deliver(run, files, _show_results(run, stream, busy))
    if out is not None:
        print_lines([f"wrote {path}" for path in written], stream)
    return run.exit_code


def _list(names: tuple[str, ...]) -> int:
    """Print the metrics, one a line; those of ``names`` where there are any."""
    from portagpu.suites.performance import UnknownMeasure
    from portagpu.suites.performance.cases import metrics, selected_areas

    with usage_errors(UnknownMeasure):
        areas = selected_areas(names)
    click.echo("\n".join(each for each in metrics() if each.partition("/")[0] in areas))
    return 0


def _from_results(
    names: tuple[str, ...], peers: bool, calibrate: bool, json_to: str | None, junit: str | None
) -> int:
    """Compare saved results, or propose expectations from them."""
    from portagpu.cli._bench_tables import calibrate as propose_rows
    from portagpu.cli._bench_tables import compare_peers

    context = click.get_current_context()
    usable = {"names", "peers", "calibrate", *(("json_to", "ocp_to", "junit") if peers else ())}
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in usable:
            flag = "--peers" if peers else "--calibrate"
            raise click.UsageError(f"{flag} measures nothing: leave out {option.opts[0]}")
    if peers and calibrate:
        raise click.UsageError("give either --peers or --calibrate, not both")
    if peers:
        return compare_peers(names, json_to, junit)
    return propose_rows(names)


def _show_results(run: Run, stream: TextIO, busy: str) -> list[str]:
    """Print the table and return the lines below it."""
    from portagpu.cli._bench_tables import notes, show_table
    from portagpu.runs.results.wording import failures_text

    if run.results:
        show_table(run, terminal(stream), stream)
    lines = ["", *notes(run), *([busy] if busy else []), "", *failures_text(run.results)]
    return [*lines, results_line(run), run.summary_line()]
