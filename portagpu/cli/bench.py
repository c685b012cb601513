"""``portagpu bench``: the performance suite on this machine's device."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import (
    STDOUT,
    begin_outputs,
    effort_of,
    human_stream,
    json_option,
    require_torch,
    results_line,
    say,
    screen,
    terminal,
)
from portagpu.cli._complete import complete_measure, complete_target

if TYPE_CHECKING:
    from portagpu.bench import Device
    from portagpu.results.run import Run


@click.command()
@click.argument(
    "names",
    nargs=-1,
    metavar="[gemm|memory|transfer|launch|collectives|METRIC ...]",
    shell_complete=complete_measure,
)
@click.option(
    "--backend", metavar="NAME", help="The backend to measure; by default this machine's."
)
@click.option(
    "--index",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="The device for measures of one device; by default the first.",
)
@click.option(
    "--world",
    type=click.IntRange(min=1, max=4096),
    metavar="N",
    help="Ranks of collectives; by default one a device, or two where all share one.",
)
@click.option("--quick", is_flag=True, help="Seconds for everything; default.")
@click.option("--full", is_flag=True, help="More samples and sizes: minutes.")
@click.option(
    "--target",
    metavar="ID",
    shell_complete=complete_target,
    help="The target to judge by; INCONCLUSIVE where this machine is another.",
)
@click.option("--junit", metavar="FILE", help="Also write the results as JUnit XML to FILE.")
@click.option("--strict", is_flag=True, help="UNVERIFIED results lower PASS to UNVERIFIED.")
@json_option
def bench(
    names: tuple[str, ...],
    backend: str | None,
    index: int,
    world: int | None,
    quick: bool,
    full: bool,
    target: str | None,
    junit: str | None,
    strict: bool,
    json_to: str | None,
) -> int:
    """Measure this device: matrix products, memory, transfers, launches and collectives.

    A number is kept only after the values behind it were checked, and judged by what the target
    expects. Exit code 0 for PASS, 1 for FAIL or ERROR, 3 where nothing was judged, 130 when
    interrupted.
    """
    effort = effort_of(quick, full)
    require_torch("bench")
    from portagpu.bench.suite import UnknownMeasure, selected_areas
    from portagpu.cli._running import check_device
    from portagpu.host import read_host
    from portagpu.report.junit import write_junit
    from portagpu.results.run import new_run
    from portagpu.target import load_target

    if target is not None:
        load_target(target)
    run = new_run(["portagpu", *sys.argv[1:]], target=target, strict=strict)
    try:
        selected_areas(names)
        check_device(backend, index)
        busy = read_host().busy
        begin_outputs(run, json_to, junit)
        _measure(run, names, backend, index, world, effort, target, json_to)
    except UnknownMeasure as error:
        raise click.UsageError(str(error)) from error
    _show(run, json_to, busy)
    if json_to == STDOUT:
        run.dump(sys.stdout)
    elif json_to is not None:
        run.write_json(json_to)
    if junit is not None:
        write_junit(run, junit)
    return run.exit_code


def _measure(
    run: Run,
    names: tuple[str, ...],
    backend: str | None,
    index: int,
    world: int | None,
    effort: str,
    target: str | None,
    json_to: str | None,
) -> None:
    """Fill ``run``; what was measured before Ctrl-C stays."""
    from portagpu import bench as suite
    from portagpu.cli._running import Progress
    from portagpu.world import Ranks

    def opened(device: Device) -> None:
        run.info = replace(
            run.info,
            backend=device.backend,
            target=target or device.target,
            versions={**run.info.versions, **device.versions},
            devices=({"name": device.product or device.name, "arch": device.arch},),
        )

    interrupted = False
    with Progress(screen(human_stream(json_to))) as progress, Ranks() as ranks:
        try:
            suite.run(
                names,
                ranks=ranks,
                backend=backend,
                index=index,
                world=world,
                effort=suite.Effort(effort),
                target=target,
                on_device=opened,
                on_result=run.add,
                on_case=lambda case, number, of: progress.show(case.id, number, of),
            )
        except KeyboardInterrupt:
            interrupted = True
    run.finish(interrupted=interrupted)


def _show(run: Run, json_to: str | None, busy: str) -> None:
    from portagpu.cli._benchtext import notes, show_table
    from portagpu.results.wording import failures_text

    stream = human_stream(json_to)
    if run.results:
        show_table(run, terminal(stream), stream)
    lines = [
        "",
        *notes(run),
        *([busy] if busy else []),
        "",
        *failures_text(run.results),
        results_line(run),
    ]
    say([*lines, run.summary_line()], stream)
