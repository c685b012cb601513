"""``portagpu collectives tune``: the fastest way to perform collectives here, as a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu.cli._common import (
    STDOUT,
    check_finite,
    check_outputs,
    chosen_effort,
    require_torch,
    results_line,
    run_json_option,
    terminal,
    text_stream,
)
from portagpu.cli._sweep_options import sweep_options
from portagpu.cli.collectives_choose import bucket_lines, parameter_sizes
from portagpu.facts.nccl_tests.model import TUNED

if TYPE_CHECKING:
    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.tuning import Profile
    from portagpu.runs.results.run import Run

_HEAD: Final = ("operation", "dtype", "ranks", "size", "chosen", "time", "default", "ratio")
_RIGHT: Final = {"ranks", "size", "time", "default", "ratio"}
_MOST_IDS: Final = 3


@click.command()
@sweep_options(
    TUNED,
    fewest_ranks=2,
    ranks="2 and 4",
    dtypes="float32",
    sizes="five from 1K to 16M",
    quick="7 rounds and 12 pairs of each size",
    full="Sizes to 64 MiB, 15 rounds and 30 pairs",
)
@click.option("--profile", metavar="FILE", help="Write the profile to FILE.")
@click.option(
    "--emit-dir",
    metavar="DIR",
    help="Write what the stack reads into DIR: a tuner's configuration, variables, bucket sizes.",
)
@click.option(
    "--params",
    metavar="FILE",
    help="Also choose bucket_cap_mb: the bytes of every parameter, as a JSON list or one number a "
    "line.",
)
@click.option(
    "--backward-ms",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    metavar="MS",
    help="The time of a backward pass without communication, for --params.",
)
@click.option("--strict", is_flag=True, help="Any UNVERIFIED result lowers PASS to UNVERIFIED.")
@run_json_option
def tune(
    backend: str | None,
    ranks: tuple[int, ...],
    only: tuple[str, ...],
    dtype: tuple[str, ...],
    size: tuple[int, ...],
    quick: bool,
    full: bool,
    timeout: float | None,
    profile: str | None,
    emit_dir: str | None,
    params: str | None,
    backward_ms: float | None,
    strict: bool,
    json_to: str | None,
) -> int:
    """Measure ways to perform collectives, check their values, and write a profile.

    A candidate is chosen if it is faster than the library's own call again, alternately with it.
    The profile holds for this machine and these versions. Nothing is written if a value is wrong,
    a rank is lost, or the run is interrupted. Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if
    nothing was judged, 130 if interrupted.
    """
    effort = chosen_effort(quick, full)
    if (params is None) != (backward_ms is None):
        raise click.UsageError("--params and --backward-ms belong together: give both or neither")
    if profile == STDOUT:
        raise click.UsageError("--profile needs the name of a file, not '-'")
    require_torch("collectives tune")
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.suites import collectives as engine
    from portagpu.suites.performance import Effort

    try:
        sizes = parameter_sizes(params) if params is not None else []
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    check_outputs(profile, json_to, *([Path(emit_dir) / "x"] if emit_dir is not None else []))
    files = Files(json_to)
    run = engine.tune(
        engine.TuneOptions(
            backend=backend,
            worlds=ranks,
            operations=only,
            dtypes=dtype,
            sizes=size,
            effort=Effort(effort),
            timeout_s=timeout,
            strict=strict,
            command=["portagpu", *sys.argv[1:]],
        ),
        View(files),
    )
    lines = _show(run, json_to)
    try:
        found = engine.profile_of(run)
    except ValueError as error:
        # the verdict says it too, and has the exit code
        deliver(run, files, [*lines, str(error)])
        return run.exit_code
    buckets = None
    for world in sorted({each.ranks for each in found.entries}) if backward_ms is not None else ():
        try:
            # the file has those of the largest world
            buckets = found.choose_buckets(sizes, 1e3 * (backward_ms or 0.0), world)
        except ValueError as error:
            lines.append(f"no bucket sizes: {error}")
        else:
            lines += [*bucket_lines(buckets), f"on {world} ranks, {found.basis}"]
    deliver(run, files, [*lines, *_write(found, profile, emit_dir, buckets)])
    return run.exit_code


def _write(
    found: Profile, path: str | None, folder: str | None, buckets: BucketChoice | None
) -> list[str]:
    """Write the files and say which; a line for each that is not written."""
    from portagpu.base.files import write_atomic
    from portagpu.devices.collectives.emit import files_of

    said = []
    if path is not None:
        said.append(f"profile: {found.write(path)}")
    if folder is None:
        return said
    texts, reasons = files_of(found, buckets)
    said += [f"written: {write_atomic(Path(folder) / name, text)}" for name, text in texts.items()]
    return [*said, *reasons]


def _show(run: Run, json_to: str | None) -> list[str]:
    """Print the table and return the lines below it."""
    from portagpu.base.units import number, quantity
    from portagpu.base.units import size as size_text
    from portagpu.cli._tables import print_table, reason_lines
    from portagpu.runs.results.wording import failures_text

    rows: list[tuple[str, ...]] = []
    refuted = []
    for result in run.results:
        point: Any = result.extra.get("point")
        shape: Any = result.shape
        if point is None:
            continue
        ratio = f"{number(point['ratio'], 3)} ± {number(point['spread'], 2)}"
        rows.append(
            (
                shape["operation"],
                shape["dtype"],
                str(shape["ranks"]),
                size_text(point["size_bytes"]),
                result.extra["chosen"]["name"],
                quantity(point["chosen_us"], "us"),
                quantity(point["default_us"], "us"),
                ratio if point["pairs"] else "1",
            )
        )
        if point["refuted"]:
            refuted.append(f"{result.id.removeprefix('collectives/tune/')}: {point['refuted']}")
    stream = text_stream(json_to)
    if rows:
        print_table(stream, terminal(stream), _HEAD, rows, _RIGHT)
    open_ = [result for result in run.results if not result.failed]
    lines = ["", *reason_lines(open_, lambda each: each.id, _MOST_IDS)]
    if refuted:
        lines += ["faster at first and not again, so that the default stays:", *refuted]
    return [*lines, "", *failures_text(run.results), results_line(run), run.summary_line()]
