"""What a tuned choice gains over torch's default: ``python -m tests.benchmarks.tune_figures``.

Two tables, on Gloo with the ranks of one machine:

- every operation and size on 2 and 4 ranks. A profile is measured; then new ranks time the choice
  and torch's default side by side in both orders. Nothing of these times was used to choose;
- a step of DDP with a model of 30 M parameters on 2 ranks: 25 MiB, the ``bucket_cap_mb`` that the
  measured times choose, and the profile's hook, in turns.

``--few`` takes one operation and a small model.
"""

from __future__ import annotations

import math
import sys
import time
from statistics import median, quantiles
from typing import Any, Final

import torch
import torch.distributed as dist

from portagpu.base.stats import summarise
from portagpu.devices.collectives.algorithms import Task, perform
from portagpu.devices.collectives.buckets import MIB
from portagpu.devices.collectives.tuning import DEFAULT, Profile
from portagpu.runs.world import Ranks
from portagpu.suites.collectives import TuneOptions, profile_of, tune

WORLDS: Final = (2, 4)
PAIRS: Final = 24
STEPS: Final = 12
WIDTH: Final = 1024
LAYERS: Final = 28
"""Square layers: 28 * (1024**2 + 1024) are 29.4 M parameters."""
BATCH: Final = 64


def side_by_side(rank: Any, points: list[list[Any]], pairs: int) -> list[list[list[float]]]:
    """For each (operation, bytes, way): seconds of (default, way), of the slowest rank."""
    found = []
    for operation, size_bytes, way in points:
        share = size_bytes // 4 // rank.world
        whole = torch.zeros(share * rank.world if "many" not in operation else size_bytes // 4)
        output, sent = whole, whole
        if operation == "all_gather":
            sent = torch.zeros(share)
        elif operation == "reduce_scatter":
            output = torch.zeros(share)
        task = Task(output=output, input=sent, tensors=whole.chunk(32))
        perform(operation, way, task)
        perform(operation, DEFAULT, task)
        times = []
        for number in range(pairs):
            pair = {}
            for name in (DEFAULT, way)[:: 1 if number % 2 == 0 else -1]:
                dist.barrier()
                started = time.perf_counter()
                perform(operation, name, task)
                pair[name] = time.perf_counter() - started
            times.append([pair[DEFAULT], pair[way]])
        box = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        found.append(box.tolist())
    return found


def gains(profile: Profile, pairs: int = PAIRS) -> list[tuple[str, int, int, str, list[float]]]:
    """(operation, ranks, bytes, way, ratios default over chosen) of every measured size."""
    found = []
    with Ranks() as ranks:
        for world in sorted({each.ranks for each in profile.entries}):
            points = [
                (entry.operation, point.size_bytes, each.candidate.way)
                for entry in profile.entries
                for each in entry.ranges
                for point in each.points
                if entry.ranks == world
            ]
            chosen = [each for each in points if each[2] != DEFAULT]
            timed: dict[Any, list[float]] = {}
            if chosen:
                outcome = ranks.run(
                    f"{__file__}:side_by_side",
                    world,
                    arguments={"points": chosen, "pairs": pairs},
                    backend="cpu",
                    timeout_s=600.0,
                )
                timed = {
                    point: [default / way for default, way in times]
                    for point, times in zip(chosen, outcome.values[0], strict=True)
                }
            # where the default was chosen, both are the same call
            found += [
                (operation, world, size_bytes, way, timed.get((operation, size_bytes, way), [1.0]))
                for operation, size_bytes, way in points
            ]
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def steps(
    rank: Any, path: str | None, width: int, layers: int, count: int, cap: int | None
) -> dict[str, list[float]]:
    """Seconds of a step by what DDP is given: in turns, of the slowest rank.

    ``cap`` is the chosen ``bucket_cap_mb``. Without ``path`` only a backward pass without
    communication is timed.
    """
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])

    inputs = torch.randn(BATCH, width)
    if path is None:
        alone = model()
        return {"alone": _slowest([_step(alone, inputs) for _ in range(count + 2)][2:])}
    tuned = rank.gpu.comm.tuned(path)
    kinds: dict[str, torch.nn.Module] = {"25 MiB": DistributedDataParallel(model())}
    kinds["chosen"] = DistributedDataParallel(model(), bucket_cap_mb=cap)
    hooked = DistributedDataParallel(model(), bucket_cap_mb=cap)
    hooked.register_comm_hook(None, tuned.comm_hook)
    kinds["chosen, hook"] = hooked
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(count + 2):
        for name in list(kinds)[:: 1 if number % 2 == 0 else -1]:
            dist.barrier()
            taken = _step(kinds[name], inputs)
            # DDP builds its buckets again after the first step
            if number >= 2:
                times[name].append(taken)
    return {name: _slowest(each) for name, each in times.items()}


def _step(model: torch.nn.Module, inputs: torch.Tensor) -> float:
    model.zero_grad(set_to_none=True)
    loss = model(inputs).square().mean()
    started = time.perf_counter()
    loss.backward()
    return time.perf_counter() - started


def _slowest(seconds: list[float]) -> list[float]:
    box = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return [float(each) for each in box]


def train(profile: Profile, path: str, width: int, layers: int, count: int) -> dict[str, Any]:
    """Medians in ms and ratios of the backward pass with its communication."""
    with Ranks() as ranks:

        def run(**arguments: Any) -> dict[str, list[float]]:
            given = {"width": width, "layers": layers, "count": count, **arguments}
            outcome = ranks.run(
                f"{__file__}:steps", 2, arguments=given, backend="cpu", timeout_s=600.0
            )
            found: dict[str, list[float]] = outcome.values[0]
            return found

        # the least: a pause of the machine would count as computation that hides communication
        alone_s = min(run(path=None, cap=None)["alone"])
        sizes = [4 * width * width, 4 * width] * layers
        choice = profile.choose_buckets(sizes, 1e6 * alone_s, 2)
        times = run(path=path, cap=choice.best.cap_mib)
    base = times["25 MiB"]
    return {
        "parameters": sum(sizes) // 4,
        "backward alone ms": 1e3 * alone_s,
        "cap": choice.best.cap_mib,
        "predicted": choice.speedup,
        "ms": {name: 1e3 * median(each) for name, each in times.items()},
        "ratios": {
            name: summarise([b / t for b, t in zip(base, each, strict=True)])
            for name, each in times.items()
        },
    }


def main(arguments: list[str]) -> None:
    few = "--few" in arguments
    options: dict[str, Any] = {"backend": "cpu", "worlds": WORLDS}
    if few:
        sizes = (4096, 65536, MIB)
        options |= {"worlds": (2,), "operations": ("all_reduce",), "sizes": sizes}
    profile = profile_of(tune(TuneOptions(**options)))
    import tempfile
    from pathlib import Path

    print(f"tuned against torch's default, {profile.stack}, {profile.machine}")
    found = gains(profile, 6 if few else PAIRS)
    print(f"{'operation':<16}{'ranks':>5}{'bytes':>10}  {'way':<28}{'ratio':>7}{'quartiles':>14}")
    for operation, world, size_bytes, way, ratios in found:
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else (1.0, 1.0, 1.0)
        spread = f"{low:.2f}-{high:.2f}" if way != DEFAULT else ""
        print(f"{operation:<16}{world:>5}{size_bytes:>10}  {way:<28}{middle:>7.2f}{spread:>14}")
    for name in ("all_reduce_many", ""):
        of = [median(each[-1]) for each in found if each[0] != name]
        without = f" without {name}" if name else ""
        if of:
            print(
                f"geometric mean{without}: {geometric_mean(of):.3f} over {len(of)} points, from "
                f"{min(of):.2f} to {max(of):.2f}, {sum(each < 1 for each in of)} below 1"
            )
    with tempfile.TemporaryDirectory() as folder:
        path = str(profile.write(Path(folder) / "profile.json"))
        size = (256, 4, 3) if few else (WIDTH, LAYERS, STEPS)
        step = train(profile, path, *size)
    print(
        f"DDP, {step['parameters'] / 1e6:.1f} M parameters, 2 ranks: backward alone "
        f"{step['backward alone ms']:.1f} ms, bucket_cap_mb = {step['cap']}, predicted "
        f"{step['predicted']:.3f} times as fast as 25 MiB"
    )
    for name, ratio in step["ratios"].items():
        print(f"  {name:<14}{step['ms'][name]:>9.1f} ms, {ratio.median:.3f} ± {ratio.spread:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
