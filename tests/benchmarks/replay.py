"""How long ``portagpu info`` and ``bringup`` take over recordings of up to 512 devices.

    python tests/benchmarks/replay.py [--repeats N] [--json FILE]

The recordings are synthetic trees of sysfs, KFD and /proc. "info" and "bringup" are in one process
that has imported everything, with the reading of the files; "command" is ``python -m portagpu
bringup --replay`` with all its imports and its three files. The figures belong to the machine and
its load: nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from portagpu.checks.bringup import BringupOptions, bringup
from portagpu.checks.info import collect
from portagpu.checks.recordings.replay import Recording
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86

_MACHINES = {
    "8 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(8))),
    "8 x MI300X": lambda: machine(*(amd_gpu(each) for each in range(8))),
    "8 x MI300X as 64 CPX": lambda: machine(*(amd_gpu(each, parts=8) for each in range(8))),
    "64 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(64))),
    "512 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(512))),
}


def _ms(call: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _command(root: Path, out: Path) -> None:
    command = [sys.executable, "-m", "portagpu", "bringup", "--replay", str(root)]
    path = f"{ROOT}:{ROOT / 'backends'}"
    done = subprocess.run(
        [*command, "--out", str(out)],
        env={"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode not in (1, 3):
        raise SystemExit(done.stderr)


def measure(repeats: int) -> list[dict[str, Any]]:
    """One row a recording, medians in milliseconds."""
    rows = []
    for name, make in _MACHINES.items():
        files, links = make()
        with tempfile.TemporaryDirectory() as folder:
            root = build(Path(folder) / "machine", two_socket_x86() | files, links)
            run = bringup(BringupOptions(replay=Recording(root)))
            rows.append(
                {
                    "recording": name,
                    "devices": len(run.info.devices),
                    "results": len(run.results),
                    "info_ms": _ms(lambda: collect(machine=Recording(root)), repeats),  # noqa: B023
                    "bringup_ms": _ms(
                        lambda: bringup(BringupOptions(replay=Recording(root))),  # noqa: B023
                        repeats,
                    ),
                    "command_ms": _ms(
                        lambda: _command(root, Path(folder) / "out"),  # noqa: B023
                        repeats,
                    ),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = measure(options.repeats)
    print(
        f"{'recording':<22}{'devices':>9}{'results':>9}{'info':>11}{'bringup':>11}{'command':>11}"
    )
    for row in rows:
        print(
            f"{row['recording']:<22}{row['devices']:>9}{row['results']:>9}{row['info_ms']:>8.0f} ms"
            f"{row['bringup_ms']:>8.0f} ms{row['command_ms']:>8.0f} ms"
        )
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
