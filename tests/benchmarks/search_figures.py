"""False alarms of random programs on the right CPU, and how many programs run in a second.

    python -m tests.benchmarks.search_figures [--seeds 20] [--time 3m] [--isa AVX2 SSE41]

Each seed is a run of all searches as ``portagpu conform --deep --time T`` has them, with oneDNN
limited to each instruction set in turn (``ONEDNN_MAX_CPU_ISA``; DEFAULT is this processor's own).
It takes seeds x instruction sets x T. The first seed is ``--first``: alarms name theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from portagpu.suites.conformance import list_cases

RAN = re.compile(r"(\d+)(?: of \d+)? programs.*? in ([\d.]+) s")


def results(seed: int, isa: str, duration: str, names: list[str]) -> list[dict[str, object]]:
    """The results of one run, as JSON has them."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        words = [
            "-m",
            "portagpu",
            "conform",
            "--backend",
            "cpu",
            "--level",
            "deep",
            "--time",
            duration,
        ]
        words += ["--seed", str(seed), "--json", str(file)]
        words += [word for name in names for word in ("--only", name)]
        subprocess.run(
            [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=False
        )
        found: list[dict[str, object]] = json.loads(file.read_text())["results"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--time", default="3m")
    parser.add_argument("--isa", nargs="+", default=["DEFAULT"])
    parser.add_argument("--only", nargs="+", help="cases, by default all searches")
    given = parser.parse_args()
    names = given.only or [each.id for each in list_cases() if each.search]
    programs: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for isa in given.isa:
        verdicts: Counter[str] = Counter()
        for seed in range(given.first, given.first + given.seeds):
            every = results(seed, isa, given.time, names)
            verdicts.update(str(each["verdict"]) for each in every)
            for each in every:
                if each["verdict"] != "PASS":
                    print(f"{isa} seed {seed}: {each['id']}: {each['reason']}", flush=True)
                reported = RAN.search(str(each.get("extra", "")))
                if reported:
                    programs[str(each["id"])] += int(reported[1])
                    seconds[str(each["id"])] += float(reported[2])
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        print(f"{isa}: {given.seeds} seeds, {len(names)} searches each: {counts}", flush=True)
    for name in programs:
        rate = programs[name] / seconds[name]
        print(f"{name:36} {programs[name]:8} programs {rate:8.1f} a second")


if __name__ == "__main__":
    main()
