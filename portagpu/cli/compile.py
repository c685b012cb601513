"""``portagpu compile``: machine code of the kernels in Triton and C++, for any architecture."""

from __future__ import annotations

import sys

import click

from portagpu.cli._common import human_stream, json_option, results_line, terminal
from portagpu.cli._complete import complete_arch, complete_target


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
    from portagpu.cli._running import Files, View, deliver
    from portagpu.compile import CompileOptions
    from portagpu.compile import compile_kernels as run_compilers
    from portagpu.kernels.cache import Cache, cache_folder

    if (target is not None) + bool(archs) + everything != 1:
        raise click.UsageError("name one of --target ID, --arch NAME and --all")
    cache = Cache(None if no_cache else cache_folder("compile"))
    command = ["portagpu", *sys.argv[1:]]
    options = CompileOptions(
        target=target, archs=archs, cache=cache, strict=strict, command=command
    )
    files = Files(json_to)
    run = run_compilers(options, View(files))
    stream = human_stream(json_to)
    show_table(run, terminal(stream), stream)
    lines = ["", *notes(run)]
    if cache.problem and not no_cache:
        lines.append(cache.problem)
    deliver(run, files, [*lines, results_line(run), run.summary_line()])
    return run.exit_code
