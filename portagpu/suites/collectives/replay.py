"""Tables of nccl-tests and rccl-tests: judges recorded ones, and writes a run of verify as them.

Recorded outputs are judged by the rules of ``verify``.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import MissingDependency, RecordingError
from portagpu.base.files import read_bounded
from portagpu.base.packed import ZSTD, zstd_bytes
from portagpu.facts.formats.cleaning import decode_text
from portagpu.facts.nccl_tests.model import bus_factor, fitting_ranks, has_columns_of
from portagpu.facts.nccl_tests.tables import (
    PLACES,
    REDUCTIONS,
    ROOTED,
    TYPE_NAMES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
    fitting_operations,
    read_tables,
)
from portagpu.facts.readings.model import FormatError
from portagpu.runs.engine import Progress, RunOptions, add_result, complete
from portagpu.runs.results.advice import wrong_value
from portagpu.runs.results.judgement import Judgement
from portagpu.runs.results.run import Result
from portagpu.runs.results.verdicts import Verdict
from portagpu.runs.results.wording import exactly, within

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from portagpu.runs.results.run import Run


_MAX_BYTES: Final = 64 << 20
_DEFINITION: Final = "the definition of busbw, doc/PERFORMANCE.md of nccl-tests"


def judge_recordings(
    paths: Sequence[str | os.PathLike[str]],
    options: RunOptions,
    progress: Progress | None = None,
    operation: str | None = None,
) -> Run:
    """Judge tables that nccl-tests or rccl-tests printed.

    Nothing is executed here, so no result has evidence.

    :param paths: The files.
    :param options: The options that all engines share.
    :param progress: Receives each result.
    :param operation: What tables test that do not name their program.
    :returns: A run with four results for each table: values, bandwidths, average and rows.
    :raises RecordingError: A file cannot be read or has no table, or every table names another
        operation.
    """
    progress = progress or Progress()
    tables: list[tuple[str, PerfTable]] = []
    replay = []
    seen: Counter[str] = Counter()
    for path in paths:
        data = _read(path)
        seen[Path(path).name] += 1
        again = seen[Path(path).name]
        replay.append(
            {"name": Path(path).name, "sha256": hashlib.sha256(data).hexdigest(), "source": None}
        )
        try:
            found = read_tables(decode_text(data))
        except FormatError as error:
            raise RecordingError(f"{path}: {error}") from error
        for number, table in enumerate(found, 1):
            several = f", table {number}" if len(found) > 1 else ""
            copy = f" ({again})" if again > 1 else ""
            tables.append((f"{Path(path).name}{copy}{several}", table))
    named = {table.operation for _, table in tables}
    if operation is not None and not named & {None, operation}:
        raise RecordingError(
            f"no table in these files is of {operation} or without a name: they are of "
            f"{', '.join(sorted(filter(None, named)))}"
        )

    # one text may have tables of several programs, of which the operation is that of some
    fits = [
        operation is None or all(has_columns_of(row, operation) for row in table.rows)
        for _, table in tables
    ]

    def work(run: Run) -> None:
        for number, (name, table) in enumerate(tables, 1):
            progress.item_begins(name, number, len(tables))
            known = table.operation or (operation if fits[number - 1] or not any(fits) else None)
            for result in _results(name, table, known):
                add_result(run, progress, result)

    return complete(options.new_run(replay=replay), progress, work)


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        data = read_bounded(path, _MAX_BYTES + 1)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(wbits=31).decompress(data, _MAX_BYTES + 1)
        elif data[:4] == ZSTD:
            data = zstd_bytes(data, _MAX_BYTES + 1)
    except (zlib.error, MissingDependency) as error:
        raise RecordingError(f"{path}: cannot be unpacked: {error}") from error
    if len(data) > _MAX_BYTES:
        raise RecordingError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB")
    return data


def _results(name: str, table: PerfTable, operation: str | None) -> Iterator[Result]:
    judges: dict[str, Callable[[PerfTable, str | None], Judgement]] = {
        "values": _judge_values,
        "bandwidths": _judge_bandwidths,
        "average": _judge_average,
        "rows": _judge_rows,
    }
    shape: dict[str, Any] = {"rows": len(table.rows)}
    if table.ranks is not None:
        shape["ranks"] = table.ranks
    for check, judge in judges.items():
        found = judge(table, operation)
        wrong = check == "values" and found.verdict is Verdict.FAIL
        extra = found.fields["extra"] | (wrong_value() if wrong else {})
        yield Result(
            id=f"collectives/verify/replay/{operation or 'unnamed'}/{check}",
            suite="collectives",
            area="collectives",
            shape=shape,
            does_not_show="what this code does on that hardware: the output was recorded elsewhere",
            **found.fields | {"device": name, "extra": extra},
        )


def _judge_values(table: PerfTable, operation: str | None) -> Judgement:
    halves = list(_halves(table))
    wrong = [(row, place, half) for row, place, half in halves if half.wrong or half.beyond]
    count = sum(half.wrong or 0 for _, _, half in halves) or table.out_of_bounds or len(wrong)
    expected = exactly(0, "values that the program checked")
    if wrong:
        row, place, half = wrong[0]
        many = f"{half.wrong} wrong elements" if half.wrong else "a deviation out of bounds"
        more = f", and {len(wrong) - 1} more places" if len(wrong) > 1 else ""
        reason = f"{_where(row, place)}: {many}{more}"
        return Judgement(Verdict.FAIL, reason, count, "1", expected)
    moved = [each for each in halves if each[2].deviation and not _reduces(each[0], operation)]
    if moved:
        row, place, half = moved[0]
        reason = (
            f"{_where(row, place)}: a deviation of {half.deviation:g}, though nothing is reduced"
        )
        if operation in (None, "all_to_all") and all(each[1] == PLACES[1] for each in moved):
            reason += "; all_to_all in place, which libraries do not have, may show one"
            return Judgement(Verdict.INCONCLUSIVE, reason, len(moved), "1", expected)
        return Judgement(Verdict.FAIL, reason, len(moved), "1", expected)
    if table.out_of_bounds:
        reason = f"the program says: {table.out_of_bounds} values out of bounds"
        return Judgement(Verdict.FAIL, reason, count, "1", expected)
    checked = [
        half for _, _, half in halves if half.wrong is not None or half.deviation is not None
    ]
    if not checked:
        setting = " (validation: 0)" if table.settings.get("validation") == 0 else ""
        return Judgement(Verdict.INCONCLUSIVE, f"the program checked no value{setting}")
    if table.out_of_bounds is None and all(half.wrong is None for half in checked):
        reason = "deviations have no bounds here: the line 'Out of bounds values' is missing"
        return Judgement(Verdict.INCONCLUSIVE, reason)
    return Judgement(Verdict.PASS, value=0, unit="1", expected=expected)


def _reduces(row: Row, operation: str | None) -> bool:
    """Whether a deviation may come from an order of sums."""
    if operation is not None:
        return operation in REDUCTIONS
    return row.type_name is None or row.redop not in (None, "none")


def _judge_bandwidths(table: PerfTable, operation: str | None) -> Judgement:
    ranks = table.ranks
    if ranks is None:
        reason = table.ranks_problem or "nothing says how many ranks took part"
        return Judgement(Verdict.INCONCLUSIVE, reason)
    if ranks == 1:
        return Judgement(Verdict.SKIP, "not applicable: one rank has no bus bandwidth")
    if operation is None:
        fitting = fitting_operations(table)
        reason = "no line names the program, or it has no factor here: name the operation"
        if fitting and table.program is None:
            reason = f"no line names the program; its numbers fit {', '.join(fitting)}"
            return Judgement(Verdict.PASS, reason)
        return Judgement(Verdict.INCONCLUSIVE, reason)
    factor = bus_factor(operation, ranks) or 0.0
    expected = exactly(factor, _DEFINITION)
    odd = [each for each in _halves(table) if not each[2].has_factor(factor)]
    if odd:
        other = fitting_ranks(table, operation) if table.are_more_ranks_possible else None
        if other is not None and other > ranks:
            reason = (
                f"the lines list {ranks} ranks, and the bandwidths are those of {other}: lines of "
                "ranks may be missing"
            )
            return Judgement(Verdict.INCONCLUSIVE, reason)
        row, place, half = odd[0]
        more = f", and {len(odd) - 1} more are inconsistent" if len(odd) > 1 else ""
        reason = (
            f"{_where(row, place)}: busbw {half.busbw_gbs:g} is not algbw {half.algbw_gbs:g} times "
            f"{factor:g} ({operation} over {ranks} ranks){more}"
        )
        found = half.busbw_gbs / half.algbw_gbs if half.algbw_gbs else half.busbw_gbs
        return Judgement(Verdict.FAIL, reason, found, "1", expected)
    return Judgement(Verdict.PASS, value=factor, unit="1", expected=expected)


def _judge_average(table: PerfTable, _: str | None) -> Judgement:
    stated = table.average_busbw_gbs
    if stated is None:
        return Judgement(Verdict.INCONCLUSIVE, "the line 'Avg bus bandwidth' has no number")
    halves = [half for _, _, half in _halves(table)]
    mean = sum(half.busbw_gbs for half in halves) / len(halves)
    lost = sum(half.rounding[2] for half in halves) / len(halves) + 1e-5 * mean
    expected = within(mean, lost / mean if mean else 0.0, "the mean of the rows", "GB/s")
    if abs(stated - mean) <= lost:
        return Judgement(Verdict.PASS, value=stated, unit="GB/s", expected=expected)
    reason = f"the average of {stated:g} GB/s is not the mean of the rows, {mean:.6g} GB/s"
    if (missing := _missing_rows(table)) or table.problems:
        reason = f"{reason}; {missing or table.problems[0]}"
        return Judgement(Verdict.INCONCLUSIVE, reason, stated, "GB/s", expected)
    return Judgement(Verdict.FAIL, reason, stated, "GB/s", expected)


def _judge_rows(table: PerfTable, _: str | None) -> Judgement:
    if table.failure:
        return Judgement(Verdict.FAIL, f"the program ended with an error: {table.failure}")
    reasons = [*table.problems, *filter(None, [_missing_rows(table)])]
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return Judgement(Verdict.INCONCLUSIVE, f"{reasons[0]}{more}")
    return Judgement(Verdict.PASS, value=len(table.rows), unit="1")


def _missing_rows(table: PerfTable) -> str:
    """A sentence if the settings ask for other rows than there are; empty if they do not."""
    settings = table.settings
    least, most = settings.get("minimum_bytes"), settings.get("maximum_bytes")
    factor, step = settings.get("step_factor", 1), settings.get("step_bytes", 0)
    if least is None or most is None or (factor > 1 and least == 0) or (factor < 2 and not step):
        return ""
    if factor > 1:
        wanted, size = 0, least
        while size <= most:
            wanted, size = wanted + 1, size * factor
    else:
        wanted = max(0, (most - least) // step + 1)
    # every dtype, reduction and root has all sizes
    if wanted and len(table.rows) % wanted == 0:
        return ""
    sizes = f"{wanted} size{'' if wanted == 1 else 's'} from {least} to {most} bytes"
    return f"there are {len(table.rows)} rows, and the program runs {sizes}"


def _halves(table: PerfTable) -> Iterator[tuple[Row, str, Timing]]:
    return ((row, place, half) for row in table.rows for place, half in row.timings)


def _where(row: Row, place: str) -> str:
    line = f"line {row.line}, " if row.line else ""
    return f"{line}{row.size_bytes} bytes {place.replace('_', ' ')}"


def tables_of(run: Run) -> tuple[PerfTable, ...]:
    """A table for each operation and world of ``run``, a run of ``verify``, with its timed points.

    An operation that torch has in place alone has no first half. On one rank the bus bandwidth is
    0, as nccl-tests prints what is not applicable. Points that were not timed, because a value was
    wrong or the dtype was refused, are left out, and so is the end of a table that lacks one.
    """
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in run.results:
        if isinstance(result.shape, dict) and "count" in result.shape:
            key = str(result.shape["operation"]), int(result.shape["ranks"])
            groups.setdefault(key, []).append(result)
    name = str(run.info.devices[0]["name"]) if run.info.devices else ""
    return tuple(_table(*key, results, name) for key, results in groups.items())


def _table(operation: str, ranks: int, results: list[Result], device: str) -> PerfTable:
    names = list(TYPE_NAMES)
    rows = sorted(
        (_row(operation, result) for result in results),
        key=lambda row: (names.index(row.dtype or ""), row.count or 0),
    )
    halves = [half for row in rows for _, half in row.timings]
    program = {"all_to_all": "alltoall"}.get(operation, operation)
    return PerfTable(
        rows=tuple(row for row in rows if row.timings),
        program=f"{program}_perf",
        operation=operation,
        ranks=ranks,
        devices=tuple(RankDevice(rank=rank, name=device, index=rank) for rank in range(ranks)),
        settings={"nthreads": 1, "ngpus": 1, "validation": 1},
        out_of_bounds=sum(result.failed for result in results),
        average_busbw_gbs=sum(half.busbw_gbs for half in halves) / len(halves) if halves else None,
        ended=all(row.timings for row in rows),
    )


def _row(operation: str, result: Result) -> Row:
    shape: Any = result.shape
    halves = {
        place: _timing(result.extra[place], result.extra["wrong"].get(place, 0))
        for place in PLACES
        if place in result.extra
    }
    return Row(
        size_bytes=shape["bytes"],
        count=shape["count"],
        type_name=TYPE_NAMES[shape["dtype"]],
        redop="sum" if operation in REDUCTIONS else "none",
        root=0 if operation in ROOTED else None,
        out_of_place=halves.get("out_of_place"),
        in_place=halves.get("in_place"),
    )


def _timing(measured: Mapping[str, Any], wrong: int) -> Timing:
    return Timing(
        time_us=measured["time_us"],
        algbw_gbs=measured["algbw_gbs"],
        busbw_gbs=measured["busbw_gbs"] or 0.0,
        wrong=wrong,
    )
