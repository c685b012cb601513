"""How long traces take to a summary, next to SQLite's own GROUP BY and json.load on the same files.

    python -m tests.benchmarks.trace_speed [--formats nsys,rocpd,kineto] [--rows 100000,1000000]

Each figure is of a fresh process on two processors: seconds, CPU seconds, and the highest memory,
with imports. The subjects take turns, in both orders, and the table has their medians.

- "read" is what a summary needs of the file, "read all" every column; "summary" is the whole.
- "GROUP BY" is the smallest question: calls and time by short name. "GROUP BY, figures" is what SQL
  can say of the summary's rows: also the mean, the shortest, the longest and the squares, by name
  and device. Neither has medians, percentiles, unions of time, ranges or steps.
- "polars" and "DuckDB" read the kernels' times, devices and names through the same driver, and have
  of the summary's figures those that they have functions for: by name and device also median and
  percentile, by device the union of time and the gaps. Neither is an extra: install them for this.
- Of Kineto's JSON json.load is the reference; with more than a million events it is left out.

The SQLite files are of ``tests/support/trace_samples.py``: kernels on two devices in no order, and
for every ``--per-step`` of them a copy, four ranges and four collectives. With ``--calls`` each
kernel has its launch. Kineto's have kernels alone, 510 bytes each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
FORMATS: Final = ("nsys", "rocpd", "kineto")
MAX_JSON_ROWS: Final = 1_000_000
UUID: Final = "0198c3a1_5f00_7abc_8def_0123456789ab"
"""As tests/support/trace_samples.py has it, without numpy, which is not measured."""
_TABLES: Final = {
    "nsys": (
        "CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.{}",
        ("shortName", "demangledName"),
        ("s.value", "s.value, deviceId"),
    ),
    "rocpd": (
        f"rocpd_kernel_dispatch_{UUID} k JOIN rocpd_info_kernel_symbol_{UUID} s ON s.id = k.{{}}",
        ("kernel_id", "kernel_id"),
        ("s.display_name", "s.display_name, agent_id"),
    ),
}
_TIME: Final = "(k.end - k.start)"
_MORE: Final = f"avg{_TIME}, min{_TIME}, max{_TIME}, sum({_TIME} * 1.0 * {_TIME})"


def _group_by(path: Path, kind: str, figures: bool) -> int:
    import sqlite3

    source, joined, groups = (
        each if isinstance(each, str) else each[figures] for each in _TABLES[kind]
    )
    more = f", {_MORE}" if figures else ""
    sql = f"SELECT {groups}, count(*), sum{_TIME}{more} FROM {source} GROUP BY {groups}"  # noqa: S608
    at = groups.count(",") + 1
    with sqlite3.connect(path) as connection:
        return sum(row[at] for row in connection.execute(sql.replace("{}", joined)))


def _kernels(path: Path) -> tuple[Any, Any]:
    """The kernels of an export of nsys and its texts, as tables of Arrow."""
    import adbc_driver_sqlite.dbapi as driver

    found = []
    columns = "start, end, deviceId, demangledName AS name FROM CUPTI_ACTIVITY_KIND_KERNEL"
    with driver.connect(str(path)) as connection:
        for sql in (columns, "id, value FROM StringIds"):
            with connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
                cursor.execute(f"SELECT {sql}")
                found.append(cursor.fetch_arrow_table())
    return found[0], found[1]


def _duckdb(path: Path, _: str) -> int:
    import duckdb

    kernels, texts = _kernels(path)
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.register("k", kernels)
        connection.register("s", texts)
        rows = connection.execute(
            'WITH t AS (SELECT *, "end" - start AS d FROM k) SELECT deviceId, value, count(*), '
            "sum(d), avg(d), quantile_cont(d, 0.5), quantile_disc(d, 0.95), min(d), max(d) "
            "FROM t JOIN s ON s.id = t.name GROUP BY 1, 2"
        ).fetchall()
        connection.execute(
            'WITH o AS (SELECT deviceId, start, "end", max("end") OVER (PARTITION BY deviceId '
            'ORDER BY start, "end" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before '
            'FROM k) SELECT deviceId, sum("end" - greatest(start, coalesce(before, start))) '
            'FILTER ("end" > coalesce(before, start)), count(*) FILTER (start > before), '
            "median(start - before) FILTER (start > before), max(start - before) FROM o GROUP BY 1"
        ).fetchall()
    return sum(row[2] for row in rows)


def _polars(path: Path, _: str) -> int:
    import polars as pl

    kernels, texts = _kernels(path)
    frame = pl.from_arrow(kernels).with_columns(d=pl.col("end") - pl.col("start"))
    d, gap = pl.col("d"), pl.col("start") - pl.col("before")
    rows = (
        frame.group_by("deviceId", "name")
        .agg(
            pl.len().alias("calls"), d.sum(), d.mean().alias("mean"), d.median().alias("median"),
            d.quantile(0.95, "higher").alias("p95"), d.min().alias("min"), d.max().alias("max"),
        )
        .join(pl.from_arrow(texts), left_on="name", right_on="id")
    )  # fmt: skip
    ordered = frame.sort("deviceId", "start", "end").with_columns(
        before=pl.col("end").cum_max().shift(1).over("deviceId")
    )
    covered = pl.max_horizontal("start", pl.col("before").fill_null(pl.col("start")))
    ordered.group_by("deviceId").agg(
        (pl.col("end") - covered).clip(0).sum().alias("busy"),
        (gap > 0).sum().alias("gaps"),
        gap.filter(gap > 0).median().alias("median gap"),
        gap.max().alias("longest gap"),
    )
    return int(rows["calls"].sum())


def _json(path: Path, _: str) -> int:
    with path.open() as file:
        return len(json.load(file)["traceEvents"]) - 1


def _read(path: Path, _: str) -> int:
    from portagpu.traces.analysis.reading import read
    from portagpu.traces.analysis.summary import NEEDED

    return read(path, NEEDED).count("kernel") or 0


def _read_all(path: Path, _: str) -> int:
    from portagpu.traces.analysis.reading import read

    return read(path).count("kernel") or 0


def _summary(path: Path, _: str) -> int:
    from portagpu.traces.analysis.reading import read
    from portagpu.traces.analysis.summary import NEEDED, summarize

    return summarize([read(path, NEEDED)]).events["kernel"]


SUBJECTS: Final[dict[str, Callable[[Path, str], int]]] = {
    "GROUP BY": lambda path, kind: _group_by(path, kind, figures=False),
    "GROUP BY, figures": lambda path, kind: _group_by(path, kind, figures=True),
    "DuckDB": _duckdb,
    "polars": _polars,
    "json.load": _json,
    "read": _read,
    "read all": _read_all,
    "summary": _summary,
}


def _make(path: Path, kind: str, rows: int, per_step: int, calls: bool) -> None:
    if kind == "kineto":
        _write_kineto(path, rows)
        return
    from tests.support.trace_samples import timeline, write_nsys, write_rocpd

    made = timeline(rows, devices=2, shuffled=True, calls=calls, per_step=per_step)
    (write_nsys if kind == "nsys" else write_rocpd)(made, path)


def _write_kineto(path: Path, events: int) -> None:
    """A trace of kernels as Kineto of torch 2.4 to 2.9 prints them."""
    head = {"schemaVersion": 1, "cupti_version": 28, "baseTimeNanoseconds": 1759300074000000000}
    name = "void at::native::vectorized_elementwise_kernel<4, float>"
    with path.open("w") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for number in range(events):
            file.write(
                '  {\n    "ph": "X", "cat": "kernel", '
                f'"name": "{name} {number % 97:02d}", "pid": {number % 8}, "tid": 7,\n'
                f'    "ts": {6869181217000 + number}.{number % 1000:03d}, '
                f'"dur": 3.{number % 997:03d},\n    "args": {{\n'
                f'      "External id": {number},\n      "queued": 0, '
                f'"device": {number % 8}, "context": 1,\n      "stream": 7, '
                f'"correlation": {number},\n      "registers per thread": 32,\n'
                '      "shared memory": 16384,\n      "blocks per SM": 4.272727,\n'
                '      "warps per SM": 17.09091,\n      "grid": [564, 1, 1],\n'
                '      "block": [128, 1, 1],\n      "est. achieved occupancy %": 27\n    }\n  },\n'
            )
        file.write('  {"ph": "i", "s": "g", "name": "Record Window End", "ts": 1.0}\n]}\n')


def _one(path: Path, kind: str, subject: str) -> None:
    import resource
    import time

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    start = time.perf_counter()
    count = SUBJECTS[subject](path, kind)
    wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps({"wall": wall, "cpu": cpu, "mib": used.ru_maxrss / 1024, "count": count}))


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.trace_speed", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return done.stdout


def _compare(path: Path, kind: str, rows: int, repeats: int) -> None:
    names = ["json.load", "read", "summary"] if kind == "kineto" else [*SUBJECTS]
    names = [each for each in names if each != "json.load" or kind == "kineto"]
    installed = {"DuckDB": find_spec("duckdb"), "polars": find_spec("polars")}
    names = [n for n in names if n not in installed or (installed[n] and kind == "nsys")]
    names = [each for each in names if each != "json.load" or rows <= MAX_JSON_ROWS]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            run = json.loads(_run("--one", name, "--file", path, "--kind", kind))
            if run["count"] != rows:
                raise SystemExit(f"{name} found {run['count']} of {rows} kernels")
            found[name].append(run)
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "mib")}
        for name, runs in found.items()
    }
    known = ("GROUP BY", "GROUP BY, figures", "DuckDB", "polars", "json.load")
    references = [each for each in known if each in middle]
    for name, run in middle.items():
        ratios = ", ".join(
            f"{middle[each]['wall'] / run['wall']:.1f} ({middle[each]['cpu'] / run['cpu']:.1f})"
            for each in references
            if name not in references
        )
        print(
            f"| {kind} | {rows:,} | {path.stat().st_size >> 20:,} MiB | {name} |"
            f" {run['wall']:.2f} | {run['cpu']:.2f} | {run['mib']:,.0f} MiB | {ratios} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rows", default="100000,1000000,10000000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--per-step", type=int, default=1024)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--one", choices=("make", *SUBJECTS), help=argparse.SUPPRESS)
    parser.add_argument(
        "--file", type=Path, help="a file that is there, of the one format and size"
    )
    parser.add_argument("--kind", choices=FORMATS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one == "make":
        made = (int(options.rows), options.per_step, options.calls)
        _make(options.file, options.kind, *made)
        return
    if options.one:
        _one(options.file, options.kind, options.one)
        return
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print("| file | kernels | size | | seconds | CPU s | memory | times faster, seconds (CPU) |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in options.formats.split(","):
        for rows in map(int, options.rows.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                path = options.file or Path(folder) / f"{kind}.trace"
                if not options.file:
                    more = ["--calls"] if options.calls else []
                    more += ["--per-step", options.per_step, "--rows", rows]
                    _run("--one", "make", "--kind", kind, "--file", path, *more)
                _compare(path, kind, rows, options.repeats)
    print(f"\nload of the machine after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
