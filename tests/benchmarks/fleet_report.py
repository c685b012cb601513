"""CPU seconds and peak memory of a fleet's report, from files and from a store.

    python -m tests.benchmarks.fleet_report [--nodes 100,1000,10000] [--rounds 3] [--keep FOLDER]

The nodes are those of ``tests/support/fleet_simulation.py``: a result of eight devices for each,
and one for each pair of ``--rounds``. CPU seconds are those of the command and its
processes, memory is that of the largest one.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.fleet_simulation import ROUNDS, simulate, write_files

ROOT = Path(__file__).resolve().parents[2]


def cost(*words: str) -> tuple[float, float]:
    """CPU seconds and MiB of a command of portagpu."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = (
        "import resource, subprocess, sys; "
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    command = [sys.executable, "-m", "portagpu", *words]
    done = subprocess.run(
        [sys.executable, "-c", measured, *command],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, int(done.stdout) / 1024


def measure(nodes: int, rounds: int, folder: Path) -> None:
    """Make the nodes, and print what each command costs."""
    place = folder / f"nodes-{nodes}"
    store = str(folder / f"nodes-{nodes}.db")
    Path(store).unlink(missing_ok=True)
    if not place.exists():
        write_files(simulate(nodes, rounds=rounds), place)
    files = sum(1 for _ in place.glob("*/result.json"))
    size = sum(each.stat().st_size for each in place.glob("*/result.json"))
    print(f"{nodes:,} nodes, {files:,} files, {size / 1e6:,.0f} MB", flush=True)
    page = str(folder / f"nodes-{nodes}.html")
    for name, words in {
        "report of the files": ("fleet", "report", str(place), "--out", page),
        "import": ("matrix", "history", "import", str(place), "--store", store),
        "import again": ("matrix", "history", "import", str(place), "--store", store),
        "report with the store": (
            ("fleet", "report", str(place), "--history", store, "--out", page)
        ),
    }.items():
        cpu_s, mib = cost(*words)
        print(f"  {name:24}{cpu_s:9.1f} CPU s{mib:9.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="100,1000,10000")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="a folder for the files, which are used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for count in options.nodes.split(","):
            measure(int(count), options.rounds, folder)


if __name__ == "__main__":
    main()
