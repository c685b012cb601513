"""Train a transformer by any combination of data, tensor and pipeline parallelism, and go on later.

    python examples/train_parallel.py
    torchrun --standalone --nproc_per_node=4 examples/train_parallel.py --tp 2 --pp 2
    torchrun --standalone --nproc_per_node=2 examples/train_parallel.py --checkpoints kept

The task is that of train_transformer.py: the sum of each digit and the one before it, modulo ten.
Every way of splitting the work gives the same losses. With --checkpoints a run goes on from the
newest checkpoint in that folder, on any number of ranks.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional as F  # noqa: N812 - torch's own convention

import portagpu as pg

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DIGITS, LENGTH, WIDTH, HEAD, DEPTH = 10, 16, 64, 16, 4
TENSORS: Final = {
    **dict.fromkeys(("*.q", "*.k", "*.v", "*.up"), ColwiseParallel()),
    **dict.fromkeys(("*.out", "*.down"), RowwiseParallel()),
}
"""How layers are split: columns, then rows, so that a block adds up its parts twice."""


class Digits(nn.Module):
    """Digits [batch, LENGTH] to [batch, LENGTH, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))

    def forward(self, digits: torch.Tensor) -> torch.Tensor:
        """Each digit's vector and its place's."""
        return self.digit(digits) + self.place


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm and added to a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_feed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, LENGTH, WIDTH] to the same shape. A rank has the heads of its columns."""
        y = self.norm(x)
        heads = (
            part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_feed(x))))


class Head(nn.Module):
    """[batch, LENGTH, WIDTH] to logits [batch * LENGTH, DIGITS]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, DIGITS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A row for each place."""
        return self.logits(self.norm(x).flatten(0, 1))


def batch_of(step: int, size: int, mesh: DeviceMesh) -> list[torch.Tensor]:
    """This rank's rows of a batch, digits and answers, on its device.

    Ranks that differ in tp or pp alone have the same rows.
    """
    generator = torch.Generator().manual_seed(step)
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    answers = (digits + F.pad(digits, (1, 0))[:, :-1]) % DIGITS
    mine = slice(mesh["dp"].get_local_rank(), None, mesh["dp"].size())
    return [each[mine].to(pg.device()) for each in (digits, answers)]


def loss_of(logits: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """The mean over all places."""
    return F.cross_entropy(logits, answers.flatten())


def train(options: argparse.Namespace) -> None:
    """Train from the newest checkpoint to the last step."""
    mesh = pg.parallel.mesh(tp=options.tp, pp=options.pp)
    torch.manual_seed(0)
    whole = nn.Sequential(Digits(), *(Block() for _ in range(DEPTH)), Head())
    interleaved = options.schedule == "interleaved"
    stages = pg.parallel.split(whole.to(pg.device()), mesh, chunks=2 if interleaved else 1)
    recipe = pg.planning.Recipe(sharding="fsdp2", precision="fp32", recompute=options.recompute)
    models = [pg.parallel.apply(recipe, each, mesh, tensor_plan=TENSORS) for each in stages]
    optimizers = [torch.optim.AdamW(each.parameters(), lr=3e-3) for each in models]
    schedule = pg.parallel.schedule(
        models, mesh, loss_of, micro_batches=options.micro_batches, kind=options.schedule
    )
    pipe = mesh["pp"]
    first, last = pipe.get_local_rank() == 0, pipe.get_local_rank() == pipe.size() - 1

    kept = options.checkpoints and pg.parallel.load(options.checkpoints, models, optimizers)
    begin = kept.step if kept else 0
    for step in range(begin, options.steps):
        digits, answers = batch_of(step, options.batch, mesh)
        losses: list[torch.Tensor] = []
        schedule.step(
            *((digits,) if first else ()),
            **({"target": answers, "losses": losses} if last else {}),
        )
        parameters = [each for model in models for each in model.parameters()]
        norm = pg.parallel.clip_grad_norm_(parameters, 1.0, mesh=mesh)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % options.every == 0 or step + 1 == options.steps:
            # last stages have the loss, each of its own rows; all ranks add up
            total = (
                torch.stack(losses).detach().sum() if last else torch.zeros((), device=pg.device())
            )
            dist.all_reduce(total)
            mean = total.item() / (mesh["dp"].size() * mesh["tp"].size())
            if dist.get_rank() == 0:
                print(f"step {step:4d}  loss {mean:.6f}  norm {norm.item():.4f}", flush=True)
    if options.checkpoints and begin < options.steps:
        path = pg.parallel.save(options.checkpoints, options.steps, models, optimizers, mesh=mesh)
        if dist.get_rank() == 0:
            print(f"kept {path}", flush=True)


def main() -> None:
    """Read the options, join the ranks and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, default=1, help="ranks that split tensors [%(default)s]")
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline [%(default)s]")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=4, help="of each step [%(default)s]")
    parser.add_argument("--recompute", choices=("none", "operators", "full"), default="none")
    parser.add_argument("--steps", type=int, default=100, help="the last step [%(default)s]")
    parser.add_argument("--batch", type=int, default=64, help="sequences a step, over all ranks")
    parser.add_argument("--every", type=int, default=20, help="steps between reports")
    parser.add_argument("--checkpoints", help="a folder that all ranks see")
    options = parser.parse_args()
    # a group of one where no launcher started this
    with pg.backend().comm.init():
        train(options)


if __name__ == "__main__":
    main()
