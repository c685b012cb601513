"""``portagpu trace timeline``: captures as one timeline for Perfetto."""

from __future__ import annotations

import click

from portagpu.cli._common import STDOUT, check_outputs
from portagpu.cli._traces import check_not_read


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True))
@click.option(
    "-o",
    "--out",
    "--output",
    "output",
    required=True,
    metavar="OUT.pftrace",
    help="Write the timeline to this file. ui.perfetto.dev opens it.",
)
def timeline(paths: tuple[str, ...], output: str) -> int:
    """Write what profilers captured as one timeline for Perfetto.

    FILE is what nsys, rocprofv3, torch's profiler or another known tool wrote, of any vendor; a
    folder stands for all traces in it. Several files are the ranks of one run. They share one clock
    where every file says when its time began; else each of them begins at 0. Exit code 1 if a file
    could not be read, or if there is no event to show.
    """
    from portagpu.base.files import write_parts
    from portagpu.base.text import one_line
    from portagpu.base.units import count as in_words
    from portagpu.cli._traces import read_captures
    from portagpu.traces.analysis.timeline import clock, count, parts

    if output == STDOUT:
        raise click.UsageError("--output needs the name of a file")
    check_outputs(output)
    check_not_read(paths, output)
    captures, whole = read_captures(paths)
    if not captures:
        return 1
    events = count(captures)
    for capture in captures:
        for problem in capture.problems:
            click.echo(f"problem: {one_line(problem)}", err=True)
    if not events:
        click.echo("portagpu: these captures have no events: there is no timeline", err=True)
        return 1
    write_parts(output, parts(captures))
    if not clock(captures).common:
        click.echo(
            "not every file says when its time began: each begins at 0, and their times "
            "cannot be compared",
            err=True,
        )
    click.echo(f"wrote {output}: {in_words(events, 'event')}, for ui.perfetto.dev", err=True)
    return 0 if whole else 1
