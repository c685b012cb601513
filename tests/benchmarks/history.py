"""How long a store takes for 10,000 runs with 100 measures each: the import, and each question.

    python -m tests.benchmarks.history [--runs 10000] [--measures 100] [--postgresql]

Run it on two processors: ``taskset -c 0,1``. 100 machines of 20 targets have as many runs each; the
numbers are made up and seeded, and one measure of every machine becomes 10 % slower with a version.

- "import" is the whole of it: each file read, checked, compressed and stored in a transaction of
  its own. "store" is the part of the database.
- A question is asked five times: in this process, where the median is shown, and as the command,
  with Python's start and imports.

The store is SQLite in a temporary folder, or a server of PostgreSQL that is started for it, without
fsync.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from portagpu.reports.history.compare import compare, outliers, recent, trends
from portagpu.reports.history.documents import read_document
from portagpu.reports.history.model import select
from portagpu.reports.history.regressions import level_changes
from portagpu.reports.history.store import open_store
from tests.support.history_samples import measure, run, write
from tests.support.history_stores import server

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.reports.history.store import Store
    from portagpu.runs.results.run import Run

MACHINES = [(f"example-{index % 20}", f"node-{index}") for index in range(100)]
BATCH = 500


def made(number: int, new: bool, measures: int, random_: random.Random) -> Run:
    """The run with that number, of each machine in turn, on the old or the new software."""
    target, host = MACHINES[number % len(MACHINES)]
    day = number // len(MACHINES)
    results = [
        measure(
            f"memory/size[{index}]",
            (100.0 + index) * random_.gauss(1, 0.01) * (0.9 if new and index == 7 else 1),
        )
        for index in range(measures)
    ]
    versions = {"torch": "2.13.0" if new else "2.12.0"}
    return run(day, results, host=host, target=target, versions=versions)


def fill(store: Store, runs: int, measures: int) -> tuple[float, float]:
    """Seconds for the whole import, and for the database's part."""
    random_ = random.Random(1)  # noqa: S311 - made-up numbers
    whole_s = store_s = 0.0
    for begin in range(0, runs, BATCH):
        numbers = range(begin, min(begin + BATCH, runs))
        with tempfile.TemporaryDirectory() as folder:
            files = write(
                Path(folder), [made(each, each > 0.6 * runs, measures, random_) for each in numbers]
            )
            started = time.perf_counter()
            for file in files:
                document = read_document(file)
                before = time.perf_counter()
                store.add(document)
                store_s += time.perf_counter() - before
            whole_s += time.perf_counter() - started
    return whole_s, store_s


def questions(place: str) -> dict[str, tuple[Callable[[], Any], list[str]]]:
    """Each question as a function, and as the words of the command."""

    def asked(answer: Callable[[Store], Any]) -> Callable[[], Any]:
        def ask() -> Any:
            with open_store(place) as store:
                return answer(store)

        return ask

    def compared(store: Store, a: str, b: str) -> Any:
        runs = store.runs()
        one, other = select(a, runs), select(b, runs)
        both = [*one, *other]
        return compare(store.series(both), range(len(one)), range(len(one), len(both)))

    with open_store(place) as store:
        ids = [run.id for run in store.runs()[-2:]]
    old, new = "torch=2.12.0", "torch=2.13.0"
    measure_ = "memory/size[7]"
    return {
        "runs": (asked(lambda store: store.runs()), ["runs"]),
        "compare two runs": (
            asked(lambda store: compared(store, *ids)),
            ["compare", *ids],
        ),
        "compare two versions, all runs": (
            asked(lambda store: compared(store, old, new)),
            ["compare", old, new],
        ),
        "trend of one measure": (
            asked(lambda store: trends(store.series(runs := store.runs(), measure_), runs)),
            ["trend", measure_],
        ),
        "regressions of one target": (
            asked(
                lambda store: level_changes(
                    store.series(runs := select("target=example-3", store.runs())), runs
                )
            ),
            ["regressions", "--of", "target=example-3"],
        ),
        "regressions of everything": (
            asked(lambda store: level_changes(store.series(runs := store.runs()), runs)),
            ["regressions"],
        ),
        "outliers of everything": (
            asked(lambda store: outliers(store.series(runs := recent(store.runs())), runs)),
            ["outliers"],
        ),
    }


def seconds(call: Callable[[], Any]) -> float:
    """The median of five calls."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--measures", type=int, default=100)
    parser.add_argument("--postgresql", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        place = str(Path(folder, "store.db"))
        if options.postgresql:
            place = stack.enter_context(server())()
        with open_store(place, create=True) as store:
            whole_s, store_s = fill(store, options.runs, options.measures)
        print(f"{options.runs} runs with {options.measures} measures")
        print(f"{'import':34} {whole_s:8.2f} s, {store_s:.2f} s of it the database")
        if not options.postgresql:
            print(f"{'size of the file':34} {Path(place).stat().st_size / 2**20:8.0f} MiB")
        for name, (call, words) in questions(place).items():
            command = [sys.executable, "-m", "portagpu", "matrix", "history", *words]
            whole = [*command, "--store", place]
            as_command_s = seconds(
                lambda whole=whole: subprocess.run(whole, check=False, capture_output=True)
            )
            print(f"{name:34} {seconds(call):8.2f} s, as a command {as_command_s:.2f} s")


if __name__ == "__main__":
    main()
