"""Train a small decoder-only transformer on whatever device is here, alone or with DDP.

    python examples/train_transformer.py
    torchrun --standalone --nproc_per_node=2 examples/train_transformer.py

The task: the input is a sequence of random digits. At every position the model predicts the sum of
this digit and the previous one, modulo ten. Guessing costs ln 10 = 2.30 nats a position. A model
that attends to the previous position gets close to 0.
"""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from torch.nn.parallel import DistributedDataParallel

import portagpu as pg

if TYPE_CHECKING:
    from collections.abc import Iterator

DIGITS = 10
LENGTH = 16
HELD_OUT = -1
"""The number of a batch that is not used for training."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Place:
    """This process among the ranks."""

    rank: int
    world: int

    @property
    def speaks(self) -> bool:
        """One rank prints for all."""
        return self.rank == 0


@contextmanager
def joined() -> Iterator[Place]:
    """This process's place: what torchrun started it as, or alone."""
    if "RANK" not in os.environ:
        yield Place(0, 1)
        return
    # the device of this rank, and a block that ends when all ranks end theirs; else a rank may end
    # while Gloo's thread still drops the tensor of the last reduction, and abort (torch 2.13)
    with pg.backend().comm.init() as world:
        yield Place(world.rank, world.world_size)


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm and added to a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_feed(x))


class Decoder(nn.Module):
    """Digits of shape (batch, length) to logits of shape (batch, length, DIGITS)."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, DIGITS)

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        """Logits for the answer at every place."""
        return self.head(self.norm(self.blocks(self.digit(digits) + self.place)))


def batch_of(number: int, size: int, seed: int, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of batch ``number``: digits and answers, each (size / world, LENGTH).

    Every rank draws the whole batch, on the CPU, and keeps its share: the global batch is the same
    for any number of ranks and on any device.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number + 1)
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    before = F.pad(digits, (1, 0))[:, :-1]
    mine = slice(place.rank, None, place.world)
    answers = (digits + before) % DIGITS
    return digits[mine].to(pg.device()), answers[mine].to(pg.device())


def train(options: argparse.Namespace, place: Place) -> None:
    """Train, and print the loss as it falls, then what it cost."""
    # by default bfloat16 or float16 where the device computes it itself, else float32
    choice = pg.backend().precision.training(DTYPES.get(options.precision))
    torch.manual_seed(options.seed)
    model: nn.Module = Decoder().to(pg.device())
    if place.world > 1:
        model = DistributedDataParallel(model, device_ids=pg.backend().comm.device_ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scaler = pg.GradScaler(enabled=choice.scaler)

    def loss_of(number: int) -> torch.Tensor:
        digits, answers = batch_of(number, options.batch, options.seed, place)
        with pg.annotate("forward"), pg.autocast(choice.autocast, choice.autocast is not None):
            logits = model(digits)
        return F.cross_entropy(logits.float().flatten(0, 1), answers.flatten())

    if pg.Capability.PEAK_MEMORY in pg.backend().capabilities:
        pg.reset_peak_memory_stats()
    start, end = pg.Event(enable_timing=True), pg.Event(enable_timing=True)
    start.record()
    for step in range(options.steps):
        loss = loss_of(step)
        with pg.annotate("backward"):
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % options.every == 0:
            report(f"step {step:4d}  loss {mean_over_ranks(loss, place):.4f}", place)
    end.record()
    end.synchronize()
    rate = options.steps * options.batch * LENGTH / (start.elapsed_time(end) / 1e3)

    model.eval()
    with torch.no_grad():
        held_out = mean_over_ranks(loss_of(HELD_OUT), place)
    peak_mib = pg.max_memory_allocated() / 2**20
    where = f"{place.world} rank(s) of {pg.backend().name}, {named(choice.autocast)}"
    report(f"final loss {held_out:.6f} after {options.steps} steps on {where}: ", place, end="")
    report(f"{rate:.0f} tokens/s, peak memory {peak_mib:.0f} MiB a rank", place)


def named(autocast: torch.dtype | None) -> str:
    """The dtype that products ran in."""
    return str(autocast or torch.float32).removeprefix("torch.")


def mean_over_ranks(loss: torch.Tensor, place: Place) -> float:
    """The loss over the global batch: shares are equal, so it is the mean of the ranks' means."""
    total = loss.detach().clone()
    if place.world > 1:
        dist.all_reduce(total)
    return total.item() / place.world


def report(line: str, place: Place, end: str = "\n") -> None:
    """Print once, not once a rank."""
    if place.speaks:
        print(line, end=end, flush=True)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data [%(default)s]")
    parser.add_argument("--batch", type=int, default=64, help="sequences a step, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate [%(default)s]")
    parser.add_argument("--every", type=int, default=20, help="steps between reports")
    parser.add_argument("--precision", choices=sorted(DTYPES), help="[what the hardware has]")
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if min(options.steps, options.every, options.batch) < 1 or options.batch % world:
        parser.error(f"--steps and --every are at least 1, --batch a multiple of {world} rank(s)")
    with joined() as place:
        train(options, place)


if __name__ == "__main__":
    main()
