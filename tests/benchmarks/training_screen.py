"""What ``portagpu.screen.TrainingScreen`` costs: training with and without it, in pairs.

Each pair trains the same model for ``--every`` steps twice, with one check and without, and the
order changes from pair to pair. Times are CPU seconds of this process::

    OMP_NUM_THREADS=1 python -m tests.benchmarks.training_screen --width 256 --pairs 20
"""

from __future__ import annotations

import argparse
import time
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import portagpu

if TYPE_CHECKING:
    from collections.abc import Callable

_LAYERS = 4


def _trainer(width: int, batch: int) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """The parameters of a model, and a step of its training."""
    layers = [torch.nn.Linear(width, width) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, wanted = torch.randn(batch, width), torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()

    return list(model.parameters()), step


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def main() -> int:
    """Print the share of the time of training that checks take."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    given = parser.parse_args()
    # parameters are compared in a group alone
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parameters, step = _trainer(given.width, given.batch)
    screen = portagpu.screen.TrainingScreen(parameters, every=given.every)
    screen.check()
    step()

    def trained(*, screened: bool) -> float:
        began_s = time.process_time()
        for _ in range(given.every):
            step()
            if screened:
                screen.step()
        return time.process_time() - began_s

    shares, checks, steps = [], [], []
    for pair in range(given.pairs):
        order = (True, False) if pair % 2 else (False, True)
        spent = {each: trained(screened=each) for each in order}
        shares.append(spent[True] / spent[False] - 1)
        steps.append(spent[False] / given.every)
        began_s = time.process_time()
        screen.check()
        checks.append(time.process_time() - began_s)
    low, _, high = quantiles(shares, n=4)
    alone = mean(checks) / (given.every * median(steps))
    print(f"width {given.width}, batch {given.batch}, {given.pairs} pairs of {given.every} steps")
    print(
        f"with checks {_percent(median(shares))} more CPU time, quartiles {_percent(low)} to "
        f"{_percent(high)}"
    )
    print(
        f"a step {1e3 * median(steps):.2f} ms; a check alone {1e3 * mean(checks):.2f} ms in the "
        f"mean, {1e3 * max(checks):.1f} at most, which is {_percent(alone)}"
    )
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
