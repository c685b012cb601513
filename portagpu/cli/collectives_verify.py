"""``portagpu collectives verify``: values and bandwidths of collectives, live or recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    chosen_effort,
    require_torch,
    results_line,
    run_json_option,
    terminal,
    text_stream,
)
from portagpu.cli._sweep_options import sweep_options
from portagpu.facts.nccl_tests.model import OPERATIONS, PLACES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.run import Result, Run

_HEAD: Final = ("operation", "ranks", "points", "size", "time", "algbw", "busbw", "verdict")
_REPLAY_HEAD: Final = ("recording", "operation", "check", "verdict")
_MOST_IDS: Final = 3


@click.command()
@sweep_options(
    OPERATIONS,
    fewest_ranks=1,
    ranks="1, 2 and 4",
    dtypes="all",
    sizes="a few counts and sizes",
    quick="Sizes to 1 MiB, 5 timed calls",
    full="Sizes to 16 MiB, 20 timed calls",
)
@click.option(
    "--replay",
    multiple=True,
    metavar="FILE",
    help="Judge this output of nccl-tests or rccl-tests, text or JSON; may be repeated.",
)
@click.option(
    "--tables", metavar="FILE", help="Also write the run to FILE in the text form of nccl-tests."
)
@click.option("--junit", metavar="FILE", help="Also write the results as JUnit XML to FILE.")
@click.option("--strict", is_flag=True, help="Any UNVERIFIED result lowers PASS to UNVERIFIED.")
@run_json_option
def verify(
    backend: str | None,
    ranks: tuple[int, ...],
    only: tuple[str, ...],
    dtype: tuple[str, ...],
    size: tuple[int, ...],
    quick: bool,
    full: bool,
    timeout: float | None,
    replay: tuple[str, ...],
    tables: str | None,
    junit: str | None,
    strict: bool,
    json_to: str | None,
) -> int:
    """Check the values of collectives on worlds of ranks, and time them.

    Every element on every rank is compared: with the same bits where the order of a sum does not
    matter, else with the sum in float64. With --replay nothing runs: the tables of recorded outputs
    are judged, and --only names the operation of one that does not name it. Exit codes: 0 for PASS,
    1 for FAIL or ERROR, 3 if nothing was judged, 130 if interrupted.
    """
    if replay and (backend or ranks or dtype or size or quick or full or timeout or tables):
        raise click.UsageError("--replay judges files: leave out the options of a live run")
    if replay and len(only) > 1:
        raise click.UsageError("with --replay give --only once: what unnamed tables test")
    if tables == STDOUT:
        raise click.UsageError("--tables needs the name of a file, not '-'")
    effort = chosen_effort(quick, full)
    if not replay:
        require_torch("collectives verify")
    from portagpu.base.files import write_atomic
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.runs.engine import RunOptions
    from portagpu.suites import collectives as engine
    from portagpu.suites.performance import Effort

    check_outputs(tables, junit, json_to)
    command = ["portagpu", *sys.argv[1:]]
    files = Files(json_to, junit)
    if replay:
        options = RunOptions(strict=strict, command=command)
        named = only[0] if only else None
        run = engine.judge_recordings(replay, options, View(files), named)
        deliver(run, files, _show(run, text_stream(json_to), _REPLAY_HEAD, _replay_rows(run)))
        return run.exit_code
    run = engine.verify(
        engine.VerifyOptions(
            backend=backend,
            worlds=ranks,
            operations=only,
            dtypes=dtype,
            sizes=size,
            effort=Effort(effort),
            timeout_s=timeout,
            strict=strict,
            command=command,
        ),
        View(files),
    )
    deliver(run, files, _show(run, text_stream(json_to), _HEAD, _rows(run)))
    if tables is not None:
        from portagpu.facts.nccl_tests.tables import write_text

        note = f"portagpu {run.info.versions['portagpu']}, {run.info.versions.get('comm') or ''}"
        texts = [write_text(table, note) for table in engine.tables_of(run)]
        write_atomic(tables, "".join(texts))
    return run.exit_code


def _show(
    run: Run, stream: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Print the table and return the lines below it."""
    from portagpu.cli._tables import print_table, reason_lines
    from portagpu.runs.results.wording import failures_text

    if rows:
        right = {"ranks", "points", "size", "time", "algbw", "busbw"}
        print_table(stream, terminal(stream), head, rows, right)
    open_ = [result for result in run.results if not result.failed]
    lines = ["", *reason_lines(open_, lambda each: each.id, _MOST_IDS)]
    return [*lines, "", *failures_text(run.results), results_line(run), run.summary_line()]


def _rows(run: Run) -> list[tuple[str, ...]]:
    """A row for each operation and world, with its largest size, in float32 where it has that."""
    from portagpu.base.units import quantity
    from portagpu.base.units import size as size_text
    from portagpu.runs.results.run import verdict_of

    groups: dict[tuple[str, int], list[Result]] = {}
    for result in run.results:
        shape: Any = result.shape
        if isinstance(shape, dict):
            groups.setdefault((shape["operation"], shape["ranks"]), []).append(result)
    found: list[tuple[str, ...]] = []
    for (operation, ranks), results in groups.items():
        timed = [each for each in results if any(place in each.extra for place in PLACES)]
        largest = max(timed, key=lambda each: (_bytes(each), "/float32/" in each.id), default=None)
        cells = ("-", "-", "-", "-")
        if largest is not None:
            measured = next(largest.extra[place] for place in PLACES if place in largest.extra)
            busbw = measured["busbw_gbs"]
            cells = (
                size_text(_bytes(largest)),
                quantity(measured["time_us"], "us"),
                f"{measured['algbw_gbs']:.2f} GB/s",
                "not applicable" if busbw is None else f"{busbw:.2f} GB/s",
            )
        verdict = str(verdict_of(results))
        found.append((operation, str(ranks), str(len(results)), *cells, verdict))
    return found


def _bytes(result: Result) -> int:
    shape: Any = result.shape
    return int(shape["bytes"])


def _replay_rows(run: Run) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for result in run.results:
        *_, operation, check = result.id.split("/")
        rows.append((result.device or "", operation, check, str(result.verdict)))
    return rows
