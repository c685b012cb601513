"""How long ``portagpu info`` takes on trees of 1, 8, 64 and 512 devices.

    python tests/benchmarks/info.py [--repeats N] [--json FILE]

The trees are synthetic: sysfs, KFD and /proc of whole and of partitioned GPUs. "collect" is in one
process that has imported everything; "first" is the same in a fresh interpreter, with its imports;
"command" is ``python -m portagpu info`` there, on this machine. A library's probe is a child
process next to these: it is asked on a live machine that has its vendor's GPUs, all at the same
time. The figures belong to the machine and its load: nothing here passes or fails.
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

from portagpu.checks.info import collect
from portagpu.facts.host.tree import Tree
from portagpu.machine.inventory.sources import Live
from tests.support.gpu_trees import amd_gpu, machine, nvidia_gpu
from tests.support.host_trees import build, two_socket_x86

_MACHINES = {
    "no GPU": machine,
    "1 x H200": lambda: machine(nvidia_gpu(0)),
    "8 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(8))),
    "8 x MI300X": lambda: machine(*(amd_gpu(each) for each in range(8))),
    "8 x MI300X as 64 CPX": lambda: machine(*(amd_gpu(each, parts=8) for each in range(8))),
    "64 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(64))),
    "64 x MI300X as 512 CPX": lambda: machine(*(amd_gpu(each, parts=8) for each in range(64))),
    "512 x H200": lambda: machine(*(nvidia_gpu(each) for each in range(512))),
}
_FIRST = "import sys; from portagpu.checks.info import collect; collect(sys.argv[1], {})"


def _ms(call: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _child(*arguments: str) -> None:
    command = [sys.executable, *arguments]
    path = f"{ROOT}:{ROOT / 'backends'}"
    subprocess.run(command, env={"PYTHONPATH": path}, check=True, capture_output=True, timeout=120)


def measure(repeats: int) -> list[dict[str, Any]]:
    """One row a machine, medians in milliseconds."""
    rows = []
    for name, make in _MACHINES.items():
        files, links = make()
        with tempfile.TemporaryDirectory() as folder:
            root = build(Path(folder), two_socket_x86() | files, links)
            found = Live(Tree(root), {}).inventory()
            rows.append(
                {
                    "machine": name,
                    "gpus": len(found.gpus),
                    "devices": sum(len(gpu.parts) or 1 for gpu in found.gpus),
                    "inventory": _ms(lambda: Live(Tree(root), {}).inventory(), repeats),  # noqa: B023
                    "collect": _ms(lambda: collect(root, {}), repeats),  # noqa: B023
                    "first": _ms(lambda: _child("-c", _FIRST, str(root)), repeats),  # noqa: B023
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = measure(options.repeats)
    print(f"{'machine':<24}{'GPUs':>6}{'devices':>9}{'inventory':>11}{'collect':>10}{'first':>10}")
    for row in rows:
        print(
            f"{row['machine']:<24}{row['gpus']:>6}{row['devices']:>9}{row['inventory']:>8.1f} ms"
            f"{row['collect']:>7.1f} ms{row['first']:>7.0f} ms"
        )
    command = _ms(lambda: _child("-m", "portagpu", "info"), options.repeats)
    print(f"\nthe command on this machine: {command:.0f} ms")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "command_ms": command}, indent=2) + "\n")


if __name__ == "__main__":
    main()
