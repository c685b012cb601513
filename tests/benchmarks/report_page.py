"""How large the page of a whole matrix is, and how long a browser takes to open and filter it.

    python tests/benchmarks/report_page.py [--results 100000] [--keep FILE]

The results are made up: 35 targets, each with as many results, of which 60 are measures and 15 of
these have a curve. Times in the browser need Debian's chromium, and are left out without it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from portagpu.facts.targets import load_targets
from portagpu.reports.html import write_report
from portagpu.runs.results.run import Evidence, Result, Run, RunInfo, Verdict
from tests.support.chromium import PROGRAM, WHY_NOT, Page

TARGETS = 35
MEASURES = 60
CURVES = 15
SIZES = [1 << power for power in range(12, 31, 2)]
AREAS = ("identity", "memory", "rng", "streams", "graphs", "precision", "attention", "kernels")
LIMIT_S = 3.0


def made_run(number: int, target: str, count: int) -> Run:
    """A run of ``count`` results, of which one in a thousand failed."""
    chance = random.Random(number)  # noqa: S311 - made-up results
    run = Run(
        RunInfo(
            id=f"run-{number}",
            started=f"2026-11-{1 + number % 28:02d}T10:00:00Z",
            host=f"node-{number}",
            target=target,
            versions={"portagpu": "0.1.0", "torch": "2.13.0"},
        )
    )
    for index in range(MEASURES):
        run.add(made_measure(chance, index))
    for index in range(count - MEASURES):
        area = AREAS[index % len(AREAS)]
        verdict = chance.choices(
            (Verdict.PASS, Verdict.SKIP, Verdict.INCONCLUSIVE, Verdict.FAIL), (940, 50, 9, 1)
        )[0]
        reason = "" if verdict is Verdict.PASS else f"value {chance.random():.6f} is not 1"
        run.add(
            Result(
                id=f"{area}/case-{index // 8}[variant-{index % 7}]",
                suite="conformance",
                area=area,
                verdict=verdict,
                evidence=() if verdict is Verdict.SKIP else (Evidence.EXECUTED,),
                device=f"device {index % 8}" if verdict is Verdict.FAIL else None,
                reason=reason,
                duration_s=0.01,
            )
        )
    return run


def made_measure(chance: random.Random, index: int) -> Result:
    """A bandwidth, with a curve if it is one of the first."""
    value = chance.uniform(100, 400)
    extra = {}
    if index < CURVES:
        extra["curve"] = {
            "x": SIZES,
            "y": [value * size / (size + 1e6) for size in SIZES],
            "x_label": "size",
            "y_label": "bandwidth",
            "x_unit": "B",
            "y_unit": "GB/s",
            "x_log": True,
            "series": f"measure-{index}",
        }
    return Result(
        id=f"bandwidth/measure-{index}",
        suite="performance",
        area="bandwidth",
        verdict=Verdict.UNVERIFIED,
        evidence=(Evidence.EXECUTED,),
        value=value,
        unit="GB/s",
        statistic="median",
        n=20,
        spread=value / 50,
        extra=extra,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="write the page here and keep it")
    options = parser.parse_args()
    names = sorted(load_targets())[:TARGETS]
    counts = [options.results // TARGETS + (n < options.results % TARGETS) for n in range(TARGETS)]
    runs = [
        made_run(number, name, count)
        for number, (name, count) in enumerate(zip(names, counts, strict=True))
    ]
    with tempfile.TemporaryDirectory() as folder:
        page = options.keep or Path(folder) / "matrix.html"
        start = time.perf_counter()
        write_report(runs, page)
        print(f"results {sum(len(run.results) for run in runs):,} of {TARGETS} targets")
        took_s = time.perf_counter() - start
        print(f"page {page.stat().st_size / 1e6:.1f} MB, written in {took_s:.1f} s")
        if PROGRAM is None:
            print(f"not opened: {WHY_NOT}")
            return 0
        return opened(page, Path(folder) / "profile")


def opened(path: Path, profile: Path) -> int:
    """Print the browser's times; 1 if the page took longer than the limit to open."""
    with Page(profile) as page:
        page.open(path)
        timing = "performance.getEntriesByType('navigation')[0]"
        ready_s = page.run(f"{timing}.domContentLoadedEventEnd") / 1000
        loaded_s = page.run(f"{timing}.loadEventEnd") / 1000
        print(f"DOMContentLoaded after {ready_s:.2f} s, load after {loaded_s:.2f} s")
        for name, value in (("verdict", "FAIL"), ("verdict", ""), ("target", "cpu-x86-64")):
            took_ms = page.run(
                f"(() => {{ const list = document.querySelector('select[name={name}]');"
                f" const start = performance.now(); list.value = {value!r};"
                " list.dispatchEvent(new Event('change'));"
                " document.body.offsetHeight; return performance.now() - start; })()"
            )
            print(f"{name} {value or 'all'}: {took_ms:.0f} ms, {page.run(_STATUS)}")
        assert not page.said, page.said
        return 0 if loaded_s <= LIMIT_S else 1


_STATUS = "document.querySelector('.filter [role=status]').textContent"


if __name__ == "__main__":
    raise SystemExit(main())
