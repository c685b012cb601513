"""``portagpu collectives verify`` and ``tune``: collectives run on worlds of ranks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from portagpu.cli._common import (
    STDOUT,
    SizeType,
    check_finite,
    check_outputs,
    chosen_effort,
    junit_option,
    ocp_place,
    require_torch,
    results_line,
    run_json_option,
    strict_option,
    terminal,
    text_stream,
    with_options,
)
from portagpu.facts.nccl_tests.model import OPERATIONS, PLACES, TUNED, TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.tuning import Profile
    from portagpu.runs.results.run import Result, Run


_F = TypeVar("_F", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What runs on which worlds of ranks: the options of ``sweep_options`` and ``--strict``."""

    backend: str | None
    ranks: tuple[int, ...]
    only: tuple[str, ...]
    dtype: tuple[str, ...]
    size: tuple[int, ...]
    quick: bool
    full: bool
    timeout: float | None
    strict: bool

    def __post_init__(self) -> None:
        chosen_effort(self.quick, self.full)

    @property
    def is_live(self) -> bool:
        """Whether one of them is for collectives that run, and not for recordings."""
        given = (self.backend, self.ranks, self.dtype, self.size, self.quick, self.full)
        return any(given) or bool(self.timeout)

    @property
    def fields(self) -> dict[str, Any]:
        """Those of the options of an engine."""
        from portagpu.suites.performance import Effort

        return {
            "backend": self.backend,
            "worlds": self.ranks,
            "operations": self.only,
            "dtypes": self.dtype,
            "sizes": self.size,
            "effort": Effort(chosen_effort(self.quick, self.full)),
            "timeout_s": self.timeout,
            "strict": self.strict,
            "command": ["portagpu", *sys.argv[1:]],
        }


def sweep_options(
    operations: Sequence[str],
    *,
    fewest_ranks: int,
    ranks: str,
    dtypes: str,
    sizes: str,
    quick: str,
    full: str,
) -> Callable[[_F], _F]:
    """Add the options; the texts say the defaults, and what ``--quick`` and ``--full`` mean."""
    options = (
        click.option(
            "--backend", metavar="NAME", help="Run on this backend. Default: this machine's."
        ),
        click.option(
            "--ranks",
            type=click.IntRange(fewest_ranks, 4096),
            multiple=True,
            metavar="N",
            help=f"Number of ranks; may be repeated. Default: {ranks}, up to the number of "
            "devices.",
        ),
        click.option(
            "--only",
            type=click.Choice(tuple(operations)),
            multiple=True,
            metavar="OP",
            help=f"Operation, may be repeated: {', '.join(operations)}. Default: all.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(tuple(TYPE_NAMES)),
            multiple=True,
            metavar="DTYPE",
            help=f"torch's name of a dtype, such as bfloat16; may be repeated. Default: {dtypes}.",
        ),
        click.option(
            "--size",
            type=SizeType(),
            multiple=True,
            metavar="BYTES",
            help=f"Bytes in total, such as 64K; may be repeated. Default: {sizes}.",
        ),
        click.option("--quick", is_flag=True, help=f"{quick} (default)."),
        click.option("--full", is_flag=True, help=f"{full}: minutes."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            callback=check_finite,
            metavar="SECONDS",
            help="Hard limit of one operation over one world of ranks. Default: 120, with --full "
            "600.",
        ),
    )

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_VERIFY_HEAD: Final = ("operation", "ranks", "points", "size", "time", "algbw", "busbw", "verdict")
_REPLAY_HEAD: Final = ("recording", "operation", "check", "verdict")
_MAX_IDS: Final = 3


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
@junit_option
@strict_option
@run_json_option
@with_options(Sweep)
def verify(
    sweep: Sweep,
    replay: tuple[str, ...],
    tables: str | None,
    junit: str | None,
    json_to: str | None,
) -> int:
    """Check the values of collectives on worlds of ranks, and time them.

    Every element on every rank is compared: with the same bits where the order of a sum does not
    matter, else with the sum in float64. With --replay nothing runs: the tables of recorded outputs
    are judged, and --only names the operation of one that does not name it. Exit codes: 0 for PASS,
    1 for FAIL or ERROR, 3 if nothing was judged, 130 if interrupted.
    """
    if replay and (tables or sweep.is_live):
        raise click.UsageError("--replay judges files: leave out the options of a live run")
    if replay and len(sweep.only) > 1:
        raise click.UsageError(
            "with --replay, give --only once: the operation of tables that do not name theirs"
        )
    if tables == STDOUT:
        raise click.UsageError("--tables needs the name of a file, not '-'")
    if not replay:
        require_torch("collectives verify")
    from portagpu.base.files import write_atomic
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.runs.engine import RunOptions
    from portagpu.suites import collectives as engine

    check_outputs(tables, junit, json_to, ocp_place())
    files = Files(json_to, junit)
    if replay:
        options = RunOptions(strict=sweep.strict, command=["portagpu", *sys.argv[1:]])
        named = sweep.only[0] if sweep.only else None
        run = engine.judge_recordings(replay, options, View(files), named)
        deliver(
            run, files, _show_verified(run, text_stream(json_to), _REPLAY_HEAD, _replay_rows(run))
        )
        return run.exit_code
    run = engine.verify(engine.VerifyOptions(**sweep.fields), View(files))
    deliver(run, files, _show_verified(run, text_stream(json_to), _VERIFY_HEAD, _verify_rows(run)))
    if tables is not None:
        from portagpu.facts.nccl_tests.tables import write_text

        note = f"portagpu {run.info.versions['portagpu']}, {run.info.versions.get('comm') or ''}"
        texts = [write_text(table, note) for table in engine.tables_of(run)]
        write_atomic(tables, "".join(texts))
    return run.exit_code


def _show_verified(
    run: Run, stream: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Print the table and return the lines below it."""
    from portagpu.cli._tables import print_table, reason_lines
    from portagpu.runs.results.wording import failures_text

    if rows:
        right = {"ranks", "points", "size", "time", "algbw", "busbw"}
        print_table(stream, terminal(stream), head, rows, right)
    open_ = [result for result in run.results if not result.failed]
    lines = ["", *reason_lines(open_, lambda each: each.id, _MAX_IDS)]
    return [*lines, "", *failures_text(run.results), results_line(run), run.summary_line()]


def _verify_rows(run: Run) -> list[tuple[str, ...]]:
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


_TUNE_HEAD: Final = ("operation", "dtype", "ranks", "size", "chosen", "time", "default", "ratio")
_TUNE_RIGHT: Final = {"ranks", "size", "time", "default", "ratio"}


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
    metavar="FOLDER",
    help="Write what the stack reads to this folder: a tuner's configuration, variables, bucket "
    "sizes.",
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
@strict_option
@run_json_option
@with_options(Sweep)
def tune(
    sweep: Sweep,
    profile: str | None,
    emit_dir: str | None,
    params: str | None,
    backward_ms: float | None,
    json_to: str | None,
) -> int:
    """Measure ways to perform collectives, check their values, and write a profile.

    A candidate is chosen if it is faster than the library's own call in a second measurement, where
    both alternate.
    The profile holds for this machine and these versions. Nothing is written if a value is wrong,
    a rank is lost, or the run is interrupted. Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if
    nothing was judged, 130 if interrupted.
    """
    if (params is None) != (backward_ms is None):
        raise click.UsageError("--params and --backward-ms need each other: give both or neither")
    if profile == STDOUT:
        raise click.UsageError("--profile needs the name of a file, not '-'")
    require_torch("collectives tune")
    from portagpu.cli._choice_inputs import parameter_sizes
    from portagpu.cli._run_output import Files, View, deliver
    from portagpu.cli.collectives_choose import bucket_lines
    from portagpu.suites import collectives as engine

    try:
        sizes = parameter_sizes(params) if params is not None else []
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    check_outputs(
        profile, json_to, ocp_place(), *([Path(emit_dir) / "x"] if emit_dir is not None else [])
    )
    files = Files(json_to)
    run = engine.tune(engine.TuneOptions(**sweep.fields), View(files))
    lines = _show_tuned(run, json_to)
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

    lines = []
    if path is not None:
        lines.append(f"profile: {found.write(path)}")
    if folder is None:
        return lines
    texts, reasons = files_of(found, buckets)
    lines += [f"written: {write_atomic(Path(folder) / name, text)}" for name, text in texts.items()]
    return [*lines, *reasons]


def _show_tuned(run: Run, json_to: str | None) -> list[str]:
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
        print_table(stream, terminal(stream), _TUNE_HEAD, rows, _TUNE_RIGHT)
    open_ = [result for result in run.results if not result.failed]
    lines = ["", *reason_lines(open_, lambda each: each.id, _MAX_IDS)]
    if refuted:
        lines += ["faster at first and not again, so that the default stays:", *refuted]
    return [*lines, "", *failures_text(run.results), results_line(run), run.summary_line()]
