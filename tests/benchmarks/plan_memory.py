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
from portagpu.base.subprocesses.start import python_environment
from portagpu.base.units import size
from portagpu.facts.targets import load_target
from portagpu.train.planning import Estimate, Layout, Recipe, estimate, find_model
from portagpu.train.planning.trackers import track
from tests.support.planned_models import CASES, Decoder, adamw, decoder, loss_of

GIB = 1 << 30
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""So that glibc gives back what is freed, and the peak is what torch holds."""
TITAN = "torchtitan benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf"
EIGHT: dict[str, Any] = {
    "micro_batch": 2,
    "sequence": 8192,
    "sharding": "fsdp2",
    "recompute": "operators",
    "precision": "autocast-bf16",
}
FULL: dict[str, Any] = {"sharding": "fsdp2", "recompute": "full", "precision": "autocast-fp8"}
TWO: dict[str, Any] = {"dp": 32, "tp": 8, "sequence_parallel": True}
PIPE: dict[str, Any] = {"dp": 8, "tp": 8, "pp": 8, "sequence_parallel": True, "micro_batches": 8}
CHUNKS = PIPE | {"schedule": "interleaved", "chunks": 2}
LONG = [
    (32768 * cp, FULL | {"sequence": 32768 * cp}, PIPE | {"dp": 8 // cp, "cp": cp})
    for cp in (1, 2, 4, 8)
]
COMPILED = EIGHT | {"precision": "autocast-fp8", "fused_loss": True}
FOUR = FULL | {"micro_batch": 4, "sequence": 8192}
PUBLISHED: list[tuple[str, str, dict[str, Any], dict[str, Any], float]] = [
    ("table 1, FSDP 8", "llama-3.1-8b", EIGHT, {"dp": 8}, 82.4),
    ("table 1, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 8}, 77.0),
    ("table 3, FSDP 128", "llama-3.1-8b", EIGHT, {"dp": 128}, 67.0),
    ("table 3, torch.compile", "llama-3.1-8b", EIGHT, {"dp": 128}, 62.0),
    *(
        (f"table 2, {32 * cp}k", "llama-3.1-8b", FULL | {"sequence": 32768 * cp}, layout, peak)
        for cp, layout, peak in (
            (1, {"dp": 8}, 83.9),
            (2, {"dp": 4, "cp": 2}, 84.2),
            (4, {"dp": 2, "cp": 4}, 84.0),
            (8, {"dp": 1, "cp": 8}, 84.5),
        )
    ),
    (
        "table 4, FSDP 32 TP 8",
        "llama-3.1-70b",
        FULL | {"micro_batch": 16, "sequence": 8192},
        TWO,
        71.9,
    ),
    ("table 5, FSDP 8 TP 8 PP 8", "llama-3.1-405b", FOUR, PIPE, 82.5),
    ("table 5, interleaved", "llama-3.1-405b", FOUR, CHUNKS, 72.7),
    *(
        (f"table 6, {tokens >> 10}k", "llama-3.1-405b", recipe, layout, peak)
        for (tokens, recipe, layout), peak in zip(LONG, (75.3, 75.9, 77.1, 84.9), strict=True)
    ),
    ("H200, 4 machines", "llama-3.1-8b", COMPILED, {"dp": 32}, 47.96),
    ("H200, 8 machines", "llama-3.1-8b", COMPILED, {"dp": 64}, 46.97),
]
"""Row, model, recipe, layout and GiB. torchtitan splits a pipeline's batch into as many as stages.

The last two are of llama3-8b_h200_202506_trainy-whitefiber.md at b5bcd76, when torchtitan compiled
the loss.
"""


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


def reserved(found: Estimate) -> float:
    """What the allocator sees of the expected peak."""
    outside = (found.of("device context"), found.of("collective library"))
    return found.expected - sum(each.expected for each in outside if each is not None)


def against_published() -> None:
    """Print the second table: reserved memory, so without what the allocator does not see."""
    print(
        f"\n{TITAN}\n{'GiB':<28}{'reported':>9}{'least':>8}{'expected':>10}{'most':>8}{'error':>8}"
    )
    errors = []
    for name, model, recipe, layout, reported in PUBLISHED:
        found = estimate(find_model(model), Recipe(**recipe), Layout(**layout))
        expected = reserved(found) / GIB
        errors.append(expected / reported - 1)
        print(
            f"{name:<28}{reported:>9.1f}{found.least / GIB:>8.1f}{expected:>10.1f}"
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
