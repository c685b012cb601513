"""What ``gpu.comm`` adds to torch.distributed's own calls.

    python tests/benchmarks/comm_overhead.py [--repeats N]

Nothing is communicated: the group is torch's fake one, of four ranks in one process, so that the
time is that of the calls alone. ``gpu.comm.init`` gives torch's own group, so an unchecked
collective is torch's function itself: the first rows time it on a group that ``gpu.comm`` describes
and on one that torch alone made, and differ by noise. The other rows are what ``gpu.comm`` offers
next to a training step, against torch's call for the same. Medians, in both orders. The figures
belong to the machine and its load; the bound is 5 microseconds a call.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import portagpu
from tests.benchmarks.overhead import compare

BOUND_US: Final = 5.0
ROWS: Final = (
    ("all_reduce", "dist.all_reduce(tensor, group=ours)", "dist.all_reduce(tensor, group=plain)"),
    (
        "broadcast",
        "dist.broadcast(tensor, 0, group=ours)",
        "dist.broadcast(tensor, 0, group=plain)",
    ),
    (
        "all_to_all_single",
        "dist.all_to_all_single(whole, other, group=ours)",
        "dist.all_to_all_single(whole, other, group=plain)",
    ),
    (
        "barrier with device_ids",
        "dist.barrier(device_ids=gpu.comm.device_ids, group=ours)",
        "dist.barrier(group=plain)",
    ),
    ("get_backend", "gpu.comm.get_backend(ours)", "dist.get_backend(plain)"),
    ("init_string", "gpu.comm.init_string", None),
    ("device_id", "gpu.comm.device_id", None),
    ("output_device", "gpu.comm.output_device", None),
    ("rank of the membership", "world.rank", "dist.get_rank()"),
)


def rows(repeats: int) -> list[tuple[str, float, float | None]]:
    """(call, microseconds of ours, of torch's own or None)."""
    gpu = portagpu.backend("cpu")
    with gpu.comm.init(rank=0, world_size=1) as world:
        pass
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        names: dict[str, Any] = {
            "dist": dist,
            "gpu": gpu,
            "world": world,
            "ours": dist.new_group(backend="cpu:fake"),
            "plain": dist.new_group(backend="cpu:fake"),
            "tensor": torch.ones(1024),
            "whole": torch.ones(4096),
            "other": torch.ones(4096),
        }
        found = []
        for call, ours, own in ROWS:
            ours_ns, own_ns = compare(ours, own, names, repeats)
            found.append((call, ours_ns / 1e3, None if own is None else own_ns / 1e3))
        return found
    finally:
        dist.destroy_process_group()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, medians of {options.repeats} rounds, both orders")
    print(f"{'call':<26}{'us':>9}{'own us':>9}{'added us':>10}{'within':>9}")
    for call, ours, own in rows(options.repeats):
        added = ours - (own or 0.0)
        shown = "" if own is None else f"{own:.2f}"
        within = "yes" if added <= BOUND_US else "no"
        print(f"{call:<26}{ours:>9.2f}{shown:>9}{added:>10.2f}{within:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
