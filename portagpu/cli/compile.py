"""``portagpu compile``: machine code of the kernels in Triton and C++, for any architecture."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.cli._common import (
    complete_arch,
    results_line,
    run_json_option,
    strict_option,
    target_option,
    terminal,
    text_stream,
    usage_errors,
)
from portagpu.cli._tables import VERDICT, print_table, reason_lines
from portagpu.runs.results.verdicts import Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from portagpu.runs.results.run import Result, Run


@click.command("compile")
@target_option("Build for the architecture of this target.")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    shell_complete=complete_arch,
    metavar="NAME",
    help="Build for this architecture (sm_90). May be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Build for every known architecture.")
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="Build only this kernel, or those that a pattern with * and ? fits: 'matmul*'. May be "
    "repeated.",
)
@click.option("--no-cache", is_flag=True, help="Rebuild everything.")
@strict_option
@run_json_option
def compile_kernels(
    target: str | None,
    archs: tuple[str, ...],
    everything: bool,
    only: tuple[str, ...],
    no_cache: bool,
    strict: bool,
    json_to: str | None,
) -> int:
    """Build the Triton and C++ kernels and check their machine code. No GPU is needed.

    A kernel fails if it does not compile, spills registers, exceeds a limit, or does not use the
    matrix unit. The compilers are Triton, NVRTC for NVIDIA's C++ and clang for AMD's. Exit codes:
    0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.suites.compile import CompileOptions
    from portagpu.suites.compile import compile_kernels as run_compilers
    from portagpu.suites.compile.run import UnknownKernel
    from portagpu.train.kernels.cache import Cache, cache_folder

    if (target is not None) + bool(archs) + everything != 1:
        raise click.UsageError("give exactly one of --target ID, --arch NAME and --all")
    cache = Cache(None if no_cache else cache_folder("compile"))
    command = ["portagpu", *sys.argv[1:]]
    options = CompileOptions(
        target=target, only=only, archs=archs, cache=cache, strict=strict, command=command
    )
    files = Files(json_to)
    with usage_errors(UnknownKernel):
        run = run_compilers(options, View(files))
    stream = text_stream(json_to)
    show_table(run, terminal(stream), stream)
    lines = ["", *notes(run)]
    if cache.problem and not no_cache:
        lines.append(cache.problem)
    deliver(run, files, [*lines, results_line(run), run.summary_line()])
    return run.exit_code


_NUMBERS: Final = ("registers", "spill", "shared B", "wave", "occupancy")
_REST: Final = ("matrix instructions", VERDICT)
_KERNEL_HEAD: Final = ("kernel", *_NUMBERS, *_REST)
_ARCH_HEAD: Final = ("architecture", "kernels", "skipped", *_NUMBERS, *_REST)
_RIGHT: Final = frozenset({"kernels", "skipped", *_NUMBERS})
_MAX_IDS: Final = 2


def rows(run: Run) -> list[tuple[str, ...]]:
    """The head and the rows.

    The row of an architecture has the maximum over its kernels, and their minimum occupancy.
    """
    by_arch: dict[str | None, list[Result]] = {}
    for result in run.results:
        by_arch.setdefault(result.device, []).append(result)
    if len(by_arch) == 1:
        return [_KERNEL_HEAD, *(_kernel(result) for result in run.results)]
    return [_ARCH_HEAD, *(_arch(str(name), results) for name, results in by_arch.items())]


def _kernel(result: Result) -> tuple[str, ...]:
    numbers = _numbers([result])
    name = result.id.removeprefix("kernels/")
    return (name, *numbers, _instructions([result]), str(result.verdict))


def _arch(name: str, results: list[Result]) -> tuple[str, ...]:
    skipped = sum(result.verdict is Verdict.SKIP for result in results)
    built = sum("measures" in result.extra for result in results)
    verdict = Verdict.SKIP if skipped == len(results) else fold(r.verdict for r in results)
    return (
        name,
        str(built),
        str(skipped),
        *_numbers(results),
        _instructions(results),
        str(verdict),
    )


def _numbers(results: list[Result]) -> tuple[str, ...]:
    """A cell for each of ``_NUMBERS``."""
    listed = [each for result in results for each in result.extra.get("measures", ())]
    filled = [r.extra["occupancy"] for r in results if r.extra.get("occupancy") is not None]
    return (
        _greatest(listed, "registers"),
        _spill(listed),
        _greatest(listed, "shared memory"),
        _greatest(listed, "wave size"),
        f"{min(filled):.0%}" if filled else "-",
    )


def _greatest(measures: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [each["value"] for each in measures if each["name"] == name]
    return f"{max(values):g}" if values else "-"


def _spill(measures: Sequence[Mapping[str, Any]]) -> str:
    """0, or the maximum with its unit: vendors count different things."""
    spilled: dict[str, int] = {}
    for each in measures:
        if each["name"] == "spill":
            spilled[each["unit"]] = max(spilled.get(each["unit"], 0), each["value"])
    some = [f"{value} {unit}" for unit, value in spilled.items() if value]
    return ", ".join(some) or ("0" if spilled else "-")


def _instructions(results: list[Result]) -> str:
    """Names of matrix instructions, without shapes and types for several kernels: "HMMA, IMMA"."""
    names = sorted({name for result in results for name in result.extra.get("matrix", ())})
    if len(results) > 1:
        names = sorted({_family(name) for name in names})
    return ", ".join(names) or "-"


def _family(name: str) -> str:
    parts = name.split("_")
    return "_".join(parts[:2]) if parts[0] == "v" else name.split(".", 1)[0]


def show_table(run: Run, console: Console | None, stream: TextIO) -> None:
    """The table on a terminal, or in columns of plain text."""
    head, *body = rows(run)
    print_table(stream, console, head, body, _RIGHT)


def notes(run: Run) -> list[str]:
    """Reasons, the worst first; results that share one are named together."""
    return reason_lines(
        run.results, lambda each: f"{each.device} {each.id.removeprefix('kernels/')}", _MAX_IDS
    )
