"""Parallel training by portagpu.train.parallel: two ranks give what one process gives.

Functions whose name begins with an underscore run on every rank. The reference is plain torch on
the same device, with the whole batch.
"""

from __future__ import annotations

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import case
from portagpu.suites.conformance.closeness import check_near

LAYERS, WIDTH, BATCH, STEPS, CLIP = 4, 8, 8, 2, 0.25
ROUNDINGS = 256
"""More roundings than a loss has, one after the other: 4 layers, 2 products of 8 terms, forward and
backward, 2 steps."""
BOUND = ROUNDINGS * 2.0**-24


def _model():
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(WIDTH, WIDTH)
            self.down = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    torch.manual_seed(5)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def _batch(rank, step):
    """Inputs and targets [BATCH, WIDTH], the same on every rank."""
    import torch

    generator = torch.Generator().manual_seed(step)
    both = torch.randn(2, BATCH, WIDTH, generator=generator)
    return both.to(rank.gpu.device).unbind()


def _optimizer(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _alone(rank, steps=STEPS, clip=CLIP):
    """[losses, norms] of one process."""
    from torch import nn

    model = _model().to(rank.gpu.device)
    optimizer = _optimizer(model)
    losses, norms = [], []
    for step in range(steps):
        inputs, targets = _batch(rank, step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [losses, norms]


def _over_ranks(rank, form):
    """[losses, norms] of this form of parallelism, and those of one process."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from portagpu.train import parallel

    gpu = rank.gpu
    piped = form in ("gpipe", "1f1b", "interleaved")
    mesh = parallel.mesh(gpu=gpu, tp=2 if form == "tensor" else 1, pp=2 if piped else 1)
    model = _model().to(gpu.device)
    parts = [model]
    if piped:
        parts = parallel.split(model, mesh, chunks=2 if form == "interleaved" else 1)
        schedule = parallel.schedule(parts, mesh, nn.MSELoss(), micro_batches=4, kind=form, gpu=gpu)
    elif form == "ddp":
        parts = [parallel.replicate(model, mesh, gpu=gpu)]
    else:
        if form == "tensor":
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
            parallelize_module(model, mesh["tp"], plan)
        parts = [parallel.shard(parallel.recompute(model), mesh)]
    optimizers = [_optimizer(part) for part in parts]
    losses, norms = [], []
    for step in range(STEPS):
        inputs, targets = _batch(rank, step)
        shares = mesh["dp"].size()
        inputs, targets = (each.chunk(shares)[mesh["dp"].get_local_rank()]
                           for each in (inputs, targets))  # fmt: skip
        found = []
        if piped:
            given = (inputs,) if rank.rank == 0 else ()
            schedule.step(*given, **({"target": targets, "losses": found} if rank.rank else {}))
        else:
            # two micro-batches, of which the first is not reduced
            halves = zip(inputs.chunk(2), targets.chunk(2), strict=True)
            for index, (some, wanted) in enumerate(halves):
                with parallel.no_sync(parts[0], enabled=index == 0):
                    loss = nn.functional.mse_loss(parts[0](some), wanted) / 2
                    loss.backward()
                found.append(loss)
        total = (
            sum(each.detach() for each in found) if found else torch.zeros((), device=gpu.device)
        )
        dist.all_reduce(total)
        losses.append(total.item() / (1 if piped else rank.world))
        every = [each for part in parts for each in part.parameters()]
        norms.append(parallel.clip_grad_norm_(every, CLIP, mesh=mesh).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    return [[losses, norms], _alone(rank)]


@case(
    "parallel/equals-one-process",
    spec="Losses and gradient norms of two ranks are those of one process with the whole batch.",
    capability=Capability.COLLECTIVES,
    outcome="bounded: 256 u |x|, u = 2^-24",
    params={"form": ("ddp", "fsdp2", "tensor", "gpipe", "1f1b", "interleaved")},
)
def test_equals_one_process(world, form):
    for rank, (found, alone) in enumerate(world(2, _over_ranks, form=form)):
        for name, got, exact in zip(("losses", "norms"), found, alone, strict=True):
            bounds = [BOUND * abs(each) for each in exact]
            check_near(got, exact, bounds, f"rank {rank}: {name} of {form}")


def _overflow(rank):
    """Whether each step changed this stage, and the scale after it; rank 1 overflows in step 1."""
    from portagpu.train import parallel

    mesh = parallel.mesh(gpu=rank.gpu, pp=2)
    stage = parallel.split(_model().to(rank.gpu.device), mesh)[0]
    optimizer = _optimizer(stage)
    scaler = parallel.grad_scaler(rank.gpu, init_scale=8.0)
    found = []
    for step in range(3):
        scaler.scale(stage(_batch(rank, step)[0]).square().mean()).backward()
        first = next(stage.parameters())
        if step == 1 and rank.rank == 1:
            first.grad.fill_(float("inf"))
        before = first.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append([bool((first != before).any()), scaler.get_scale()])
    return found


@case(
    "parallel/overflow-skips-every-stage",
    spec="An infinity in the gradients of one stage makes every stage skip the step.",
    capability=(Capability.COLLECTIVES, Capability.AUTOCAST),
)
def test_overflow_skips_every_stage(world):
    for rank, found in enumerate(world(2, _overflow)):
        expected = [[True, 8.0], [False, 4.0], [True, 4.0]]
        assert found == expected, f"rank {rank} steps and scales as {found}, not {expected}"


def _trained(rank, folder, steps):
    """[first step, losses, one process's] from the newest checkpoint to ``steps``, then kept."""
    import torch.distributed as dist
    from torch import nn

    from portagpu.train import parallel

    model = _model().to(rank.gpu.device)
    if rank.world > 1:
        parallel.shard(model, parallel.mesh(gpu=rank.gpu))
    optimizer = _optimizer(model)
    found = parallel.load(folder, model, optimizer)
    first = found.step if found else 0
    losses = []
    for step in range(first, steps):
        inputs, targets = (each[rank.rank :: rank.world] for each in _batch(rank, step))
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / rank.world)
    parallel.save(folder, steps, model, optimizer)
    return [first, losses, _alone(rank, steps, clip=float("inf"))[0]]


@case(
    "parallel/checkpoint-loads-on-one-rank",
    spec="A checkpoint of two ranks' shards goes on on one rank as if it had been one all along.",
    capability=Capability.COLLECTIVES,
    outcome="bounded: 256 u |x|, u = 2^-24",
)
def test_checkpoint_loads_on_one_rank(world, tmp_path):
    folder = str(tmp_path)
    begun = world(2, _trained, folder=folder, steps=2)
    ((first, went_on, alone),) = world(1, _trained, folder=folder, steps=4)
    assert first == 2, f"it goes on at step {first}, and not at 2"
    for rank, (_, losses, _) in enumerate(begun):
        bounds = [BOUND * abs(each) for each in alone]
        check_near(losses + went_on, alone, bounds, f"rank {rank} and then one: losses")
