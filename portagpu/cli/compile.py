"""``portagpu compile``: machine code of the kernels in Triton and C++, for any architecture."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from portagpu.cli._common import (
    STDOUT,
    begin_outputs,
    human_stream,
    json_option,
    results_line,
    say,
    screen,
    terminal,
)
from portagpu.cli._complete import complete_arch, complete_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.kernels.cache import Cache
    from portagpu.results.run import Result, Run


@click.command("compile")
@click.option(
    "--target",
    metavar="ID",
    shell_complete=complete_target,
    help="Build for the architecture of this target.",
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    shell_complete=complete_arch,
    metavar="NAME",
    help="Build for it (sm_90); may be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Build for every architecture there is.")
@click.option("--no-cache", is_flag=True, help="Build again what was built before.")
@click.option("--strict", is_flag=True, help="UNVERIFIED results lower PASS to UNVERIFIED.")
@json_option
def compile_kernels(
    target: str | None,
    archs: tuple[str, ...],
    everything: bool,
    no_cache: bool,
    strict: bool,
    json_to: str | None,
) -> int:
    """Build the kernels in Triton and C++ and read their machine code; no GPU is needed.

    A kernel FAILs that does not compile, spills registers, does not fit, or leaves the matrix unit.
    Its compilers are Triton, NVRTC for NVIDIA's C++ and clang for AMD's.
    Exit code 0 for PASS, 1 for FAIL or ERROR, 3 where something was not judged, 130 when
    interrupted.
    """
    from portagpu.cli._compiletext import notes, show_table
    from portagpu.compile import plan_for
    from portagpu.kernels.cache import Cache, cache_folder
    from portagpu.results.run import new_run

    if (target is not None) + bool(archs) + everything != 1:
        raise click.UsageError("name one of --target ID, --arch NAME and --all")
    plan = plan_for(target, archs)
    cache = Cache(None if no_cache else cache_folder("compile"))
    run = new_run(["portagpu", *sys.argv[1:]], target=target, strict=strict)
    begin_outputs(run, json_to)
    _build(run, plan.targets, cache, json_to)
    stream = human_stream(json_to)
    show_table(run, terminal(stream), stream)
    lines = ["", *notes(run)]
    if cache.problem and not no_cache:
        lines.append(cache.problem)
    lines += [results_line(run), run.summary_line()]
    say(lines, stream)
    if json_to == STDOUT:
        run.dump(sys.stdout)
    elif json_to is not None:
        run.write_json(json_to)
    return run.exit_code


def _compilers(results: Sequence[Result]) -> dict[str, str]:
    """The versions of the compilers that built something: {"nvrtc": "12.9, 13.5"}."""
    found: dict[str, list[str]] = {}
    for each in sorted({r.extra["compiler"] for r in results if "compiler" in r.extra}):
        name, version = each.split(" ", 1)
        found.setdefault(name.lower(), []).append(version)
    return {name: ", ".join(versions) for name, versions in found.items()}


def _build(run: Run, targets: Sequence[object], cache: Cache, json_to: str | None) -> None:
    """Fill ``run``; what was built before Ctrl-C stays."""
    from portagpu.cli._running import Progress
    from portagpu.compile import Plan, compile_all

    def add(results: Sequence[Result]) -> None:
        run.extend(results)
        run.info = replace(run.info, versions={**run.info.versions, **_compilers(results)})

    interrupted = False
    with Progress(screen(human_stream(json_to))) as progress:
        try:
            compile_all(
                Plan(tuple(targets)),  # type: ignore[arg-type]
                cache=cache,
                on_start=progress.show,
                on_results=add,
            )
        except KeyboardInterrupt:
            interrupted = True
    run.finish(interrupted=interrupted)
