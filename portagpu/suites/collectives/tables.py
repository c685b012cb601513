"""A run of verify as the tables of nccl-tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.facts.nccl_tests.tables import (
    PLACES,
    REDUCTIONS,
    ROOTED,
    TYPE_NAMES,
    PerfTable,
    RankDevice,
    Row,
    Timing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.run import Result, Run


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
