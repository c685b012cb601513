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

import torch

import portagpu as pg
from portagpu.base.subprocesses.start import python_environment
from portagpu.base.units import size
from portagpu.facts.targets import load_target
from portagpu.train.planning import Estimate, Layout, Recipe, estimate, find_model
from portagpu.train.planning.trackers import track
from tests.support.planned_models import CASES, Decoder, adamw, decoder, loss_of
from tests.support.published_memory import TITAN, TITAN_ROWS

GIB = 1 << 30
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""So that glibc gives back what is freed, and the peak is what torch holds."""


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
    for name, model, recipe, layout, reported in TITAN_ROWS:
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
