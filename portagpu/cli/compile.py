"""``portagpu compile``: machine code of the kernels in Triton and C++, for any architecture."""

from __future__ import annotations

import sys

import click

from portagpu.cli._common import results_line, run_json_option, terminal, text_stream
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
    help="Build for this architecture (sm_90). May be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Build for every known architecture.")
@click.option("--no-cache", is_flag=True, help="Rebuild everything.")
@click.option("--strict", is_flag=True, help="Any UNVERIFIED result lowers PASS to UNVERIFIED.")
@run_json_option
def compile_kernels(
    target: str | None,
    archs: tuple[str, ...],
    everything: bool,
    no_cache: bool,
    strict: bool,
    json_to: str | None,
) -> int:
    """Build the Triton and C++ kernels and check their machine code. No GPU is needed.

    A kernel fails if it does not compile, spills registers, exceeds a limit, or does not use the
    matrix unit. The compilers are Triton, NVRTC for NVIDIA's C++ and clang for AMD's. Exit codes:
    0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    from portagpu.cli._compile_text import notes, show_table
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.suites.compile import CompileOptions
    from portagpu.suites.compile import compile_kernels as run_compilers
    from portagpu.train.kernels.cache import Cache, cache_folder

    if (target is not None) + bool(archs) + everything != 1:
        raise click.UsageError("give exactly one of --target ID, --arch NAME and --all")
    cache = Cache(None if no_cache else cache_folder("compile"))
    command = ["portagpu", *sys.argv[1:]]
    options = CompileOptions(
        target=target, archs=archs, cache=cache, strict=strict, command=command
    )
    files = Files(json_to)
    run = run_compilers(options, View(files))
    stream = text_stream(json_to)
    show_table(run, terminal(stream), stream)
    lines = ["", *notes(run)]
    if cache.problem and not no_cache:
        lines.append(cache.problem)
    deliver(run, files, [*lines, results_line(run), run.summary_line()])
    return run.exit_code
