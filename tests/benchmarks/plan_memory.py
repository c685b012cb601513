"""How far estimates of memory are from peaks: ``python -m tests.benchmarks.plan_memory``.

The first table has small decoders on this CPU: the closed form, torch's tracker on the module, and
the peak of resident memory that ``portagpu.backend("cpu")`` counts, each step in a process of its
own, less what was resident before the module. The second has published peaks of torchtitan, which
are of reserved memory. An error is ``estimate / measured - 1``. The figures belong to this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import median
from typing import Any

import torch

import portagpu as pg
from portagpu.planning import Layout, Recipe, estimate, find_model
from portagpu.planning.trackers import track
from portagpu.subprocesses.start import python_environment
from portagpu.target import load_target
from portagpu.units import size
from tests.planned_models import CASES, Decoder, adamw, decoder, loss_of

GIB = 1 << 30
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""So that glibc gives back what is freed, and the peak is what torch holds."""
TITAN = "torchtitan benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf"
EIGHT = {"micro_batch": 2, "sequence": 8192, "sharding": "fsdp2", "recompute": "operators"}
FULL = {"sharding": "fsdp2", "recompute": "full", "precision": "autocast-fp8"}
PIPE: dict[str, Any] = {"dp": 8, "tp": 8, "pp": 8, "sequence_parallel": True, "micro_batches": 8}
PUBLISHED: list[tuple[str, str, dict[str, Any], dict[str, Any], float]] = [
    ("table 1, FSDP 8", "llama-3.1-8b", EIGHT | {"precision": "autocast-bf16"}, {"dp": 8}, 82.4),
    (
        "table 3, FSDP 128",
        "llama-3.1-8b",
        EIGHT | {"precision": "autocast-bf16"},
        {"dp": 128},
        67.0,
    ),
    ("table 2, FSDP 8, 32k", "llama-3.1-8b", FULL | {"sequence": 32768}, {"dp": 8}, 83.9),
    ("table 2, FSDP 4 CP 2", "llama-3.1-8b", FULL | {"sequence": 65536}, {"dp": 4, "cp": 2}, 84.2),
    ("table 2, FSDP 2 CP 4", "llama-3.1-8b", FULL | {"sequence": 131072}, {"dp": 2, "cp": 4}, 84.0),
    ("table 2, CP 8", "llama-3.1-8b", FULL | {"sequence": 262144}, {"dp": 1, "cp": 8}, 84.5),
    (
        "table 4, FSDP 32 TP 8",
        "llama-3.1-70b",
        FULL | {"micro_batch": 16, "sequence": 8192},
        {"dp": 32, "tp": 8, "sequence_parallel": True},
        71.9,
    ),
    (
        "table 5, FSDP 8 TP 8 PP 8",
        "llama-3.1-405b",
        FULL | {"micro_batch": 4, "sequence": 8192},
        PIPE,
        82.5,
    ),
    (
        "table 5, interleaved",
        "llama-3.1-405b",
        FULL | {"micro_batch": 4, "sequence": 8192},
        PIPE | {"schedule": "interleaved", "chunks": 2},
        72.7,
    ),
]
"""Row, model, recipe, layout and GiB. torchtitan splits a pipeline's batch of 32 into 8."""


def measured(name: str) -> int:
    """The peak of a case on this CPU, in this process."""
    model, batch, length, recompute = CASES[name]
    torch.set_num_threads(1)
    gpu = pg.backend("cpu")
    # the first step of all loads what torch needs for one
    small = Decoder(decoder(1, 64, 128, 100), recompute=recompute)
    loss_of(1, 8)(small).backward()
    adamw(small.parameters()).step()
    before = gpu.memory_stats()["allocated_bytes.all.current"]
    module = Decoder(model, recompute=recompute)
    stepper = adamw(module.parameters())
    for _ in range(2):
        gpu.reset_peak_memory_stats()
        loss_of(batch, length)(module).backward()
        stepper.step()
        stepper.zero_grad()
    return int(gpu.memory_stats()["allocated_bytes.all.peak"] - before)


def peak_of(name: str) -> int:
    """The same, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.plan_memory", name],
        env=python_environment(MALLOC),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return int(json.loads(done.stdout))


def on_this_cpu() -> None:
    """Print the first table."""
    target = load_target("cpu-x86-64")
    head = ("on this CPU", "measured", "closed form", "error", "tracker", "error")
    print("{:<22}{:>11}{:>13}{:>8}{:>11}{:>8}".format(*head))
    errors: list[tuple[float, float]] = []
    for name, (model, batch, length, recompute) in CASES.items():
        recipe = Recipe(
            micro_batch=batch,
            sequence=length,
            precision="fp32",
            recompute="full" if recompute else "none",
            foreach=False,
        )
        closed = estimate(model, recipe, target=target).expected
        tracked = track(
            lambda model=model, again=recompute: Decoder(model, recompute=again),  # type: ignore[misc]
            loss_of(batch, length),
            adamw,
        ).peak
        peak = peak_of(name)
        errors.append((closed / peak - 1, tracked / peak - 1))
        print(
            f"{name:<22}{size(peak):>11}{size(closed):>13}{errors[-1][0]:>8.1%}"
            f"{size(tracked):>11}{errors[-1][1]:>8.1%}"
        )
    for at, kind in enumerate(("closed form", "tracker")):
        off = [abs(each[at]) for each in errors]
        print(f"{kind}: median {median(off):.1%}, most {max(off):.1%}")


def against_published() -> None:
    """Print the second table."""
    print(
        f"\n{TITAN}\n{'GiB':<28}{'reported':>9}{'least':>8}{'expected':>10}{'most':>8}{'error':>8}"
    )
    errors = []
    for name, model, recipe, layout, reported in PUBLISHED:
        found = estimate(find_model(model), Recipe(**recipe), Layout(**layout))
        errors.append(found.expected / GIB / reported - 1)
        print(
            f"{name:<28}{reported:>9.1f}{found.least / GIB:>8.1f}{found.expected / GIB:>10.1f}"
            f"{found.most / GIB:>8.1f}{errors[-1]:>8.1%}"
        )
    off = [abs(each) for each in errors]
    print(f"closed form: median {median(off):.1%}, most {max(off):.1%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured(sys.argv[1]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        on_this_cpu()
        against_published()
