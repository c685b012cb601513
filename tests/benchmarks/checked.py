"""What a checked all-reduce costs next to torch's own: ``python tests/benchmarks/checked.py``.

Medians of calls that alternate in one world of ranks on one machine; the store is a file.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from portagpu.runs.world import Ranks

CALLS = 100


def speed(rank, count):
    """Median seconds a call of a small all-reduce, checked and not."""
    comm = rank.gpu.comm.checked(timeout_s=60.0)
    tensor = torch.ones(1024)
    seconds = {"plain": [], "checked": []}
    for _ in range(count):
        for name, call in (("plain", dist.all_reduce), ("checked", comm.all_reduce)):
            started = time.perf_counter()
            call(tensor)
            seconds[name].append(time.perf_counter() - started)
    return {name: sorted(values)[count // 2] for name, values in seconds.items()}


def main() -> None:
    print(f"{'ranks':>5}{'plain ms':>12}{'checked ms':>12}{'ratio':>8}")
    with Ranks() as ranks:
        for world in (2, 4):
            outcome = ranks.run(
                f"{__file__}:speed", world, arguments={"count": CALLS}, backend="cpu"
            )
            seconds = outcome.values[0]
            plain, checked = 1e3 * seconds["plain"], 1e3 * seconds["checked"]
            print(f"{world:>5}{plain:>12.2f}{checked:>12.2f}{checked / plain:>8.1f}")


if __name__ == "__main__":
    main()
