"""How far values of ``portagpu bench`` differ between runs, and from independent programs.

    python -m tests.benchmarks.bench_figures [--runs 10] [--rounds 5] [--names gemm memory ...]

Runs of the quick suite follow one another, each in an order of its own. A measure's spread is the
median absolute deviation of its medians. Then a product and triad are timed beside numpy's BLAS and
a STREAM in C, which this program builds with ``cc``: in turns in one process each, the order
changing each round, with the same number of threads. The figures belong to the machine and its
load: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from portagpu.stats import mad

STREAM = r"""
/* Copy and triad of STREAM (https://www.cs.virginia.edu/stream/ref.html) over float arrays, written
   for this comparison: bytes are counted as STREAM counts them; it prints medians. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
int main(int argc, char **argv) {
    long n = atol(argv[1]), repeats = atol(argv[2]);
    float *a, *b, *c;
    double *copy = malloc(repeats * sizeof(double)), *triad = malloc(repeats * sizeof(double));
    if (posix_memalign((void **)&a, 64, 4 * n) || posix_memalign((void **)&b, 64, 4 * n) ||
        posix_memalign((void **)&c, 64, 4 * n)) return 1;
    #pragma omp parallel for
    for (long i = 0; i < n; i++) { a[i] = 0; b[i] = 4 * (i % 1048573); c[i] = 4 * (i % 1048571); }
    for (long r = -2; r < repeats; r++) {
        double start = now();
        #pragma omp parallel for
        for (long i = 0; i < n; i++) a[i] = b[i];
        double middle = now();
        #pragma omp parallel for
        for (long i = 0; i < n; i++) a[i] = b[i] + 3.0f * c[i];
        double end = now();
        if (r >= 0) { copy[r] = middle - start; triad[r] = end - middle; }
    }
    for (long i = 0; i < n; i += 4099)
        if (a[i] != b[i] + 3.0f * c[i]) return 2;
    qsort(copy, repeats, sizeof(double), compare);
    qsort(triad, repeats, sizeof(double), compare);
    printf("%.6f %.6f\n", 8.0 * n / copy[repeats / 2] / 1e9, 12.0 * n / triad[repeats / 2] / 1e9);
    return 0;
}
"""

NUMPY = """
import statistics, sys, time
import numpy
edge, repeats = int(sys.argv[1]), int(sys.argv[2])
generator = numpy.random.default_rng(1)
a, b = (generator.standard_normal((edge, edge), dtype="float32") for _ in range(2))
out = a @ b
taken = []
for _ in range(repeats):
    start = time.perf_counter()
    numpy.matmul(a, b, out=out)
    taken.append(time.perf_counter() - start)
print(2 * edge**3 / statistics.median(taken) / 1e12)
"""


def measured(names: list[str], seed: int | None = None) -> dict[str, dict[str, Any]]:
    """The results of one run of the suite by id, those with a number only."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.json")
        command = [sys.executable, "-m", "portagpu", "bench", *names, "--backend", "cpu"]
        if seed is not None:
            command += ["--seed", str(seed)]
        command += ["--json", str(file)]
        subprocess.run(command, check=False, capture_output=True, timeout=1800)
        results = json.loads(file.read_text("utf-8"))["results"]
    return {each["id"]: each for each in results if isinstance(each["value"], int | float)}


def show_runs(names: list[str], runs: int) -> None:
    """A row for each measure: the median of the runs' medians, their spread and range."""
    found: dict[str, list[dict[str, Any]]] = {}
    taken = []
    for seed in range(runs):
        started = time.monotonic()
        for name, result in measured(names, seed).items():
            found.setdefault(name, []).append(result)
        taken.append(time.monotonic() - started)
        print(f"run {seed + 1} of {runs}: {taken[-1]:.0f} s", file=sys.stderr)
    print(f"\n{runs} runs of {statistics.median(taken):.0f} s (median)\n")
    print("| measure | median | spread between runs | range | spread inside a run |")
    print("|---|---|---|---|---|")
    for name, results in found.items():
        values = [float(each["value"]) for each in results]
        middle = statistics.median(values)
        inside = statistics.median(each["spread"] / each["value"] for each in results)
        print(
            f"| `{name}` | {middle:.4g} {results[0]['unit']} | {mad(values) / middle:.1%} "
            f"| {min(values) / middle - 1:+.0%} to {max(values) / middle - 1:+.0%} "
            f"| {inside:.1%} |"
        )


def compare(rounds: int) -> None:
    """A row for each independent program: the median of the ratios of ours to theirs."""
    threads = len(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    rows: dict[str, list[tuple[float, float]]] = {"gemm/fp32[1024]": []}
    rows |= {"memory/copy": [], "memory/triad": []}
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "stream.c"), Path(folder, "stream")
        source.write_text(STREAM, encoding="utf-8")
        flags = ["-O3", "-march=native", "-fopenmp"]
        subprocess.run(["cc", *flags, "-o", program, source], check=True)

        def ours() -> dict[str, float]:
            found = measured([*rows])
            if missing := [name for name in rows if name not in found]:
                raise SystemExit(f"no number for {', '.join(missing)}: the machine is too busy")
            return {name: float(found[name]["value"]) for name in rows} | {
                "bytes": found["memory/copy"]["shape"]["array_bytes"]
            }

        def theirs(array_bytes: int) -> dict[str, float]:
            blas = _printed([sys.executable, "-c", NUMPY, "1024", "50"], environment)
            stream = _printed([str(program), str(array_bytes // 4), "15"], environment)
            return dict(zip(rows, [*blas, *stream], strict=True))

        array_bytes = int(ours()["bytes"])
        for number in range(rounds):
            first = theirs(array_bytes) if number % 2 else {}
            here = ours()
            other = first or theirs(array_bytes)
            for name, pairs in rows.items():
                pairs.append((here[name], other[name]))
    print(f"\n{rounds} rounds, {threads} threads, both orders\n")
    print("| measure | ours | independent program | ours / theirs | spread of the ratios |")
    print("|---|---|---|---|---|")
    for name, pairs in rows.items():
        ratios = [one / other for one, other in pairs]
        one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            f"| `{name}` | {one:.4g} | {other:.4g} | {statistics.median(ratios):.3f} "
            f"| {mad(ratios):.3f} |"
        )


def _printed(command: list[str], environment: dict[str, str]) -> list[float]:
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=600
    )
    return [float(word) for word in done.stdout.split()]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--names", nargs="*", default=[])
    given = parser.parse_args()
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}"
    )
    if given.rounds:
        compare(given.rounds)
    if given.runs:
        show_runs(given.names, given.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
