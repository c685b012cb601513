"""How far values of ``portagpu bench`` differ between runs, and from independent programs.

    python -m tests.benchmarks.bench_figures [--runs 10] [--rounds 5] [--names gemm memory ...]

Runs of the quick suite follow one another, each in an order of its own. A measure's spread is the
median absolute deviation of its medians. Then a product is timed in turns with a call of the same
BLAS without torch and with numpy's, and copy and triad with a STREAM in C, which this program
builds with ``cc``: in one process each, the order changing each round, with the same number of
threads. The figures belong to the machine and its load: nothing here passes or fails.
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

from portagpu.base.stats import mad

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
    /* one after the other, as the suite does: a cache keeps more of two arrays than of three */
    for (long r = -2; r < repeats; r++) {
        double start = now();
        #pragma omp parallel for
        for (long i = 0; i < n; i++) a[i] = b[i];
        if (r >= 0) copy[r] = now() - start;
    }
    for (long r = -2; r < repeats; r++) {
        double start = now();
        #pragma omp parallel for
        for (long i = 0; i < n; i++) a[i] = b[i] + 3.0f * c[i];
        if (r >= 0) triad[r] = now() - start;
    }
    for (long i = 0; i < n; i += 4099)
        if (a[i] != b[i] + 3.0f * c[i]) return 2;
    qsort(copy, repeats, sizeof(double), compare);
    qsort(triad, repeats, sizeof(double), compare);
    printf("%.6f %.6f\n", 8.0 * n / copy[repeats / 2] / 1e9, 12.0 * n / triad[repeats / 2] / 1e9);
    return 0;
}
"""

BLAS = """
import ctypes, statistics, sys, time
from importlib.util import find_spec
from pathlib import Path
import numpy
edge, repeats, whose = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
generator = numpy.random.default_rng(1)
a, b = (generator.standard_normal((edge, edge), dtype="float32") for _ in range(2))
out = numpy.zeros_like(a)
if whose == "torch":
    library = ctypes.CDLL(str(Path(find_spec("torch").origin).parent / "lib" / "libtorch_cpu.so"))
    no, n = ctypes.c_char_p(b"N"), ctypes.byref(ctypes.c_int(edge))
    one, zero = (ctypes.byref(ctypes.c_float(each)) for each in (1, 0))
    # sgemm stores columns: what it sees as B A is A B in rows
    at = [ctypes.c_void_p(each.ctypes.data) for each in (b, a, out)]
    call = lambda: library.sgemm_(no, no, n, n, n, one, at[0], n, at[1], n, zero, at[2], n)
else:
    call = lambda: numpy.matmul(a, b, out=out)
call()
assert numpy.allclose(out, a.astype("float64") @ b.astype("float64"), atol=1e-2)
taken = []
for _ in range(repeats):
    start = time.perf_counter()
    call()
    taken.append(time.perf_counter() - start)
print(2 * edge**3 / statistics.median(taken) / 1e12)
"""
"""A product of numpy's matrices: by numpy's BLAS, or by that in torch's library, called by its C
name, without torch."""


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
    product = "gemm/fp32[1024]"
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {
        (product, "the same BLAS"): [],
        (product, "numpy's BLAS"): [],
        ("memory/copy", "STREAM in C"): [],
        ("memory/triad", "STREAM in C"): [],
    }
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "stream.c"), Path(folder, "stream")
        source.write_text(STREAM, encoding="utf-8")
        flags = ["-O3", "-march=native", "-fopenmp"]
        subprocess.run(["cc", *flags, "-o", program, source], check=True)

        def ours() -> tuple[list[float], int]:
            found = measured([*dict.fromkeys(name for name, _ in rows)])
            if missing := [name for name, _ in rows if name not in found]:
                raise SystemExit(f"no number for {', '.join(missing)}: the machine is too busy")
            values = [float(found[name]["value"]) for name, _ in rows]
            return values, int(found["memory/copy"]["shape"]["array_bytes"])

        def theirs(array_bytes: int) -> list[float]:
            blas = [sys.executable, "-c", BLAS, "1024", "50"]
            stream = [str(program), str(array_bytes // 4), "15"]
            commands = [[*blas, "torch"], [*blas, "numpy"], stream]
            return [number for each in commands for number in _printed(each, environment)]

        array_bytes = ours()[1]
        for number in range(rounds):
            first = theirs(array_bytes) if number % 2 else []
            here, _ = ours()
            for pairs, *pair in zip(rows.values(), here, first or theirs(array_bytes), strict=True):
                pairs.append((pair[0], pair[1]))
    print(f"\n{rounds} rounds, {threads} threads, both orders\n")
    print("| measure | compared with | ours | theirs | ours / theirs | spread of the ratios |")
    print("|---|---|---|---|---|---|")
    for (name, reference), pairs in rows.items():
        ratios = [one / other for one, other in pairs]
        one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            f"| `{name}` | {reference} | {one:.4g} | {other:.4g} | {statistics.median(ratios):.3f} "
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
