"""What the ranks of the tests of parallel training do, and the same training on one process.

The model has eight layers of width 8; a global batch has 16 rows. ``reference`` is plain torch.
"""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import portagpu as pg

WIDTH, LAYERS, BATCH = 8, 8, 16


class Layer(nn.Module):
    """Two products next to a residual."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def model_of(dtype):
    torch.manual_seed(3)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(getattr(torch, dtype))


def batch_of(step, dtype):
    """Inputs and targets [BATCH, WIDTH] of the global batch."""
    generator = torch.Generator().manual_seed(100 + step)
    both = torch.randn(2, BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return both.to(getattr(torch, dtype)).unbind()


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3, foreach=False)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)


OPTIMIZERS = {"adam": adam, "sgd": sgd}


def reference(steps=4, dtype="float64", clip=None, optimizer="sgd", first=0):
    """Losses and norms of one process."""
    model = model_of(dtype)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    losses, norms = [], []
    for step in range(first, steps):
        inputs, targets = batch_of(step, dtype)
        loss = nn.functional.mse_loss(model(inputs), targets)
        stepper.zero_grad()
        loss.backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        stepper.step()
        losses.append(loss.item())
    return losses, norms


def share_of(tensor, mesh):
    """The rows of this rank among the data-parallel ones."""
    return tensor.chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()]


def mean(loss, mesh):
    total = loss.detach().clone()
    dist.all_reduce(total, group=mesh["dp"].get_group())
    return total.item() / mesh["dp"].size()


def tensor_plan(names="*"):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {f"{names}.up": ColwiseParallel(), f"{names}.down": RowwiseParallel()}


def prepare(rank, mesh, sharding, dtype, recompute="none", precision="fp32", split=True):
    recipe = pg.planning.Recipe(sharding=sharding, recompute=recompute, precision=precision)
    plan = tensor_plan() if split is True else tensor_plan(split)
    return pg.parallel.apply(
        recipe, model_of(dtype), mesh, layers=Layer, tensor_plan=plan, gpu=rank.gpu
    )


def trains(
    rank,
    *,
    sharding="ddp",
    tp=1,
    dtype="float64",
    steps=4,
    parts=1,
    synced=True,
    clip=None,
    recompute="none",
    precision="fp32",
    split=True,
):
    """Losses and norms of data and tensor parallelism."""
    mesh = pg.parallel.mesh(tp=tp, gpu=rank.gpu)
    model = prepare(rank, mesh, sharding, dtype, recompute, precision, split)
    stepper = sgd(model.parameters())
    losses, norms = [], []
    for step in range(steps):
        inputs, targets = (share_of(each, mesh).chunk(parts) for each in batch_of(step, dtype))
        total = 0.0
        for index in range(parts):
            held = index + 1 < parts or not synced
            with pg.parallel.no_sync(model, enabled=held):
                loss = nn.functional.mse_loss(model(inputs[index]), targets[index]) / parts
                loss.backward()
            total = total + loss.detach()
        if clip is not None:
            norm = pg.parallel.clip_grad_norm_(model.parameters(), clip, mesh=mesh)
            norms.append(norm.item())
        stepper.step()
        stepper.zero_grad()
        losses.append(mean(total, mesh))
    dist.barrier()
    return [losses, norms]


def piped(
    rank,
    *,
    kind="1f1b",
    pp=2,
    sharding=None,
    dtype="float64",
    steps=4,
    micro_batches=4,
    clip=None,
    accumulated=1,
    layout=None,
):
    """Losses and norms of a pipeline, with data parallelism over what is left, or by a layout."""
    if layout is None:
        mesh = pg.parallel.mesh(pp=pp, gpu=rank.gpu)
        chunks = 2 if kind == "interleaved" else 1
    else:
        plan = pg.planning.Layout(**layout)
        mesh = pg.parallel.mesh(plan, gpu=rank.gpu)
        kind, chunks, micro_batches = plan.schedule, plan.chunks, plan.micro_batches
    parts = pg.parallel.split(model_of(dtype), mesh, chunks=chunks)
    if sharding is not None:
        recipe = pg.planning.Recipe(sharding=sharding, precision="fp32")
        parts = [
            pg.parallel.apply(recipe, each, mesh, tensor_plan=tensor_plan(), gpu=rank.gpu)
            for each in parts
        ]
    loss = nn.MSELoss()
    schedule = pg.parallel.schedule(
        parts, mesh, lambda output, target: loss(output, target) / accumulated, gpu=rank.gpu,
        micro_batches=micro_batches, kind=kind,
    )  # fmt: skip
    steppers = [sgd(each.parameters()) for each in parts]
    losses, norms = [], []
    for step in range(steps):
        inputs, targets = (
            share_of(each, mesh).chunk(accumulated) for each in batch_of(step, dtype)
        )
        found = [run_step(schedule, mesh, *each) for each in zip(inputs, targets, strict=True)]
        if clip is not None:
            both = [each for part in parts for each in part.parameters()]
            norms.append(pg.parallel.clip_grad_norm_(both, clip, mesh=mesh).item())
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        losses.append(mean(sum(found), mesh))
    dist.barrier()
    return [losses, norms]


def run_step(schedule, mesh, inputs, targets):
    """The batch's loss, on every stage."""
    pipe = mesh["pp"]
    losses = []
    given = [inputs] if pipe.get_local_rank() == 0 else []
    last = pipe.get_local_rank() == pipe.size() - 1
    schedule.step(*given, **({"target": targets, "losses": losses} if last else {}))
    total = sum(losses) if last else torch.zeros((), dtype=inputs.dtype)
    total = total.detach().clone()
    dist.all_reduce(total, group=pipe.get_group())
    return total


def several(rank, *, calls):
    """What each of these functions gives, by name: imports take longest, so one world does all."""
    found = {}
    for name, (function, options) in calls.items():
        rank.step(name)
        found[name] = globals()[function](rank, **options)
    return found


def resumes(rank, *, folder, steps, sharding="ddp", tp=1, pp=1, dies=None, breaks=None):
    """Train from the newest checkpoint, with one every two steps; [first step, losses, extra].

    Rank 1 is killed after backward of step ``dies``, or while it writes that of step ``breaks``.
    """
    mesh = pg.parallel.mesh(tp=tp, pp=pp, gpu=rank.gpu)
    if pp > 1:
        models = pg.parallel.split(model_of("float64"), mesh)
        if mesh["dp"].size() > 1:
            models = [pg.parallel.replicate(each, mesh, gpu=rank.gpu) for each in models]
        schedule = pg.parallel.schedule(models, mesh, nn.MSELoss(), micro_batches=4, gpu=rank.gpu)
    else:
        models = [prepare(rank, mesh, sharding, "float64")]
    steppers = [adam(each.parameters()) for each in models]
    found = pg.parallel.load(folder, models, steppers)
    first = 0 if found is None else found.step
    losses = []
    for step in range(first, steps):
        inputs, targets = (share_of(each, mesh) for each in batch_of(step, "float64"))
        if pp > 1:
            loss = run_step(schedule, mesh, inputs, targets)
        else:
            loss = nn.functional.mse_loss(models[0](inputs), targets)
            loss.backward()
        if rank.rank == 1 and step == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        losses.append(mean(loss, mesh))
        if (step + 1) % 2 == 0:
            with killed_writing() if rank.rank == 1 and step + 1 == breaks else nullcontext():
                pg.parallel.save(
                    folder, step + 1, models, steppers, mesh=mesh, extra={"seen": losses[-1]}
                )
    dist.barrier()
    return [first, losses, found.extra if found else None, found.world_size if found else None]


def killed_writing():
    """Put in torch's writer a process that dies when it has written its part."""
    from unittest.mock import patch

    from torch.distributed.checkpoint import FileSystemWriter

    write = FileSystemWriter.write_data

    def die(self, plan, planner):
        write(self, plan, planner).wait()
        os.kill(os.getpid(), signal.SIGKILL)

    return patch.object(FileSystemWriter, "write_data", die)


def scales(rank, *, sharding="fsdp2", plain=False, pp=1, tp=1, split=True):
    """Steps of two ranks, of which rank 1 meets an infinity in step 1.

    Gives, after each step, the scale and whether the parameters changed.
    """
    mesh = pg.parallel.mesh(pp=pp, tp=tp, gpu=rank.gpu)
    if pp > 1:
        model = pg.parallel.split(model_of("float32"), mesh)[0]
    else:
        model = prepare(rank, mesh, sharding, "float32", split=split)
    if plain:
        scaler = rank.gpu.GradScaler(init_scale=8.0, growth_interval=2)
    else:
        scaler = pg.parallel.grad_scaler(rank.gpu, init_scale=8.0, growth_interval=2)
    stepper = sgd(model.parameters())
    found = []
    for step in range(4):
        inputs, targets = (share_of(each, mesh) for each in batch_of(step, "float32"))
        before = [local(each).clone() for each in model.parameters()]
        # stages have gradients of their own here: what their loss is does not matter
        scaler.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
        if step == 1 and rank.rank == 1:
            local(next(model.parameters()).grad).fill_(float("inf"))
        scaler.step(stepper)
        scaler.update()
        stepper.zero_grad()
        after = [local(each) for each in model.parameters()]
        moved = any(not torch.equal(*both) for both in zip(before, after, strict=True))
        found.append([scaler.get_scale(), moved])
    dist.barrier()
    return found


def local(tensor):
    """The rank's own part, which shares its memory."""
    from torch.distributed.tensor import DTensor

    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def outcome_of(call):
    """[type, message] of what the call raises; None without an error."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return [type(error).__name__, str(error)]
    return None


class Counted(TorchDispatchMode):
    """Counts the operators whose name has a word in it."""

    def __init__(self, word):
        super().__init__()
        self.word = word
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += self.word in function.name()
        return function(*args, **(kwargs or {}))


def reductions(rank, *, sharding, parts=4, held=True):
    """How often gradients are reduced for one step of ``parts`` micro-batches."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    mesh = pg.parallel.mesh(gpu=rank.gpu)
    model = prepare(rank, mesh, sharding, "float64")
    buckets = []

    def hook(group, bucket):
        buckets.append(bucket)
        return allreduce_hook(group, bucket)

    if sharding == "ddp":
        model.register_comm_hook(None, hook)
    inputs = share_of(batch_of(0, "float64")[0], mesh).chunk(parts)
    with Counted("reduce_scatter") as seen:
        for index, each in enumerate(inputs):
            with pg.parallel.no_sync(model, enabled=held and index + 1 < parts):
                model(each).sum().backward()
    dist.barrier()
    return len(buckets) if sharding == "ddp" else seen.count


def held_after_an_error(rank):
    """Whether FSDP2 reduces again after an error in the block."""
    mesh = pg.parallel.mesh(gpu=rank.gpu)
    model = prepare(rank, mesh, "fsdp2", "float64")
    inputs = share_of(batch_of(0, "float64")[0], mesh)
    try:
        with pg.parallel.no_sync(model):
            raise KeyError
    except KeyError:
        pass
    model(inputs).sum().backward()
    dist.barrier()
    return all(each.grad is not None for each in model.parameters())


def clips(rank, *, values, norm, split="[0-5]", tp=1, pp=1, own=False):
    """Norms of gradients that are set by hand, and the gradients' greatest number after it.

    Every gradient of layer i is ``values[i]``; ``own`` takes torch's own function.
    """
    mesh = pg.parallel.mesh(tp=tp, pp=pp, gpu=rank.gpu)
    if pp > 1:
        model = pg.parallel.split(model_of("float64"), mesh)[0]
    else:
        model = prepare(rank, mesh, "fsdp2", "float64", split=split)
    for name, layer in model.named_children():
        for each in layer.parameters():
            each.grad = torch.full_like(each, values[int(name)]).detach()
    if own:
        return outcome_of(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm))
    found = pg.parallel.clip_grad_norm_(model.parameters(), 1.0, norm, mesh=mesh)
    left = [local(each.grad).abs().max().item() for each in model.parameters()]
    dist.barrier()
    return [str(found.item()), max(left)]


def strange_norms(rank):
    """Norms where a stage has no gradient, a shard is empty, and another rank's shard has NaN."""
    pipe, mesh = pg.parallel.mesh(pp=2, gpu=rank.gpu), pg.parallel.mesh(gpu=rank.gpu)
    stage = pg.parallel.split(model_of("float64"), pipe)[0]
    if rank.rank == 1:
        for each in stage.parameters():
            each.grad = torch.ones_like(each)
    frozen = pg.parallel.clip_grad_norm_(stage.parameters(), 1.0, mesh=pipe)
    found = [frozen.item()]
    for norm in (float("inf"), float("-inf")):
        model = pg.parallel.shard(nn.Sequential(nn.Linear(4, 1)), mesh)
        for each in model.parameters():
            each.grad = torch.full_like(each, 3.0).detach()
        found.append(pg.parallel.clip_grad_norm_(model.parameters(), 1.0, norm).item())
        if rank.rank == 0:
            local(model[0].weight.grad).fill_(float("nan"))
        found.append(pg.parallel.clip_grad_norm_(model.parameters(), 1.0, norm).item())
    dist.barrier()
    return [str(each) for each in found]


def nested_blocks(rank):
    """Whether FSDP2 has reduced after an inner block, after the outer one, and without any."""
    mesh = pg.parallel.mesh(gpu=rank.gpu)
    model = prepare(rank, mesh, "fsdp2", "float64")
    inputs = share_of(batch_of(0, "float64")[0], mesh)
    found = []
    with pg.parallel.no_sync(model):
        with pg.parallel.no_sync(model):
            model(inputs).sum().backward()
        model(inputs).sum().backward()
        found.append(model[0].up.weight.grad is not None)
    model(inputs).sum().backward()
    found.append(model[0].up.weight.grad is not None)
    dist.barrier()
    return found


class Listed(nn.Module):
    """Layers in a list, next to one."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for each in self.layers:
            x = each(x)
        return self.head(x)


def sharded_modules(rank):
    """The names of what FSDP2 shards: of lists, and of layers inside of layers."""
    from torch.distributed.fsdp import FSDPModule

    mesh = pg.parallel.mesh(gpu=rank.gpu)
    found = []
    for layers in (None, (Layer, nn.Linear)):
        model = pg.parallel.shard(Listed(), mesh, layers)
        model(torch.ones(2, WIDTH)).sum().backward()
        found.append([name for name, each in model.named_modules() if isinstance(each, FSDPModule)])
    dist.barrier()
    return found


def tied():
    model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), Layer(), nn.Linear(WIDTH, WIDTH, bias=False))
    model[2].weight = model[0].weight
    return model


class Doubled(nn.Sequential):
    """A sequence with a forward of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def refusals(rank):
    """What wrong arguments raise."""
    from portagpu.train.planning import Layout, Recipe

    parallel = pg.parallel
    mesh = parallel.mesh(gpu=rank.gpu)
    pipe = parallel.mesh(pp=2, gpu=rank.gpu)
    tensors = parallel.mesh(tp=2, gpu=rank.gpu)
    model = model_of("float32")
    loss = nn.MSELoss()

    def applied(on=mesh, plan=None, **recipe):
        return outcome_of(lambda: parallel.apply(Recipe(**recipe), model, on, tensor_plan=plan))

    def scheduled(parts, part=model, **options):
        return outcome_of(lambda: parallel.schedule([part] * parts, pipe, loss, **options))

    from torch.distributed.tensor.parallel import ColwiseParallel

    fsdp2 = {"sharding": "fsdp2", "precision": "fp32"}
    whole, layer = {"precision": "fp32"}, Layer()
    sharded = parallel.shard(model_of("float32"), mesh)
    replicas = parallel.replicate(model_of("float32"), mesh, gpu=rank.gpu)
    again = parallel.recompute(model_of("float32"))
    norms = [model.parameters(), -1.0], [model.parameters(), 1.0, 0]
    return {
        "size": outcome_of(lambda: parallel.mesh(tp=2.0, gpu=rank.gpu)),
        "layout": outcome_of(lambda: parallel.mesh(2, gpu=rank.gpu)),
        "classes": outcome_of(lambda: parallel.shard(model, mesh, "Layer")),
        "container": outcome_of(lambda: parallel.shard(Listed(), mesh, nn.ModuleList)),
        "dtype": outcome_of(lambda: parallel.shard(model, mesh, compute="bf16")),
        "host": applied(**fsdp2, offload="parameters"),
        "twice": outcome_of(lambda: parallel.shard(sharded, mesh)),
        "wrapped": outcome_of(lambda: parallel.shard(replicas, mesh)),
        "replicas": outcome_of(lambda: parallel.replicate(sharded, mesh, gpu=rank.gpu)),
        "device": outcome_of(lambda: parallel.replicate(Layer().to("meta"), mesh, gpu=rank.gpu)),
        "tied": outcome_of(lambda: parallel.shard(tied(), mesh)),
        "blocks": outcome_of(lambda: parallel.shard(tied(), mesh, Layer) and None),
        "stages": outcome_of(lambda: parallel.split(tied(), pipe)),
        "repeated": outcome_of(lambda: parallel.split(nn.Sequential(layer, Layer(), layer), pipe)),
        "forward": outcome_of(lambda: parallel.split(Doubled(*model), pipe)),
        "none": scheduled(0, micro_batches=4),
        "key": applied(tensors, {"*.upp": ColwiseParallel()}, **fsdp2),
        "untied": outcome_of(
            lambda: parallel.apply(
                Recipe(**whole), tied(), tensors, tensor_plan={"2": ColwiseParallel()}
            )
        ),
        "again": outcome_of(lambda: parallel.recompute(again)),
        "negative": outcome_of(lambda: parallel.clip_grad_norm_(*norms[0])),
        "norm": outcome_of(lambda: parallel.clip_grad_norm_(*norms[1])),
        "world": outcome_of(lambda: parallel.mesh(tp=3, gpu=rank.gpu)),
        "product": outcome_of(lambda: parallel.mesh(dp=2, tp=2, gpu=rank.gpu)),
        "zero": outcome_of(lambda: parallel.mesh(pp=0, gpu=rank.gpu)),
        "both": outcome_of(lambda: parallel.mesh(Layout(dp=2), tp=2, gpu=rank.gpu)),
        "context": outcome_of(lambda: parallel.mesh(Layout(cp=2), gpu=rank.gpu)),
        "zero1": applied(sharding="zero1"),
        "mixed-fp8": applied(precision="mixed-fp8", sharding="fsdp2"),
        "offload": applied(offload="optimizer", sharding="fsdp2", precision="fp32"),
        "tensors": applied(tensors, sharding="fsdp2", precision="fp32"),
        "layers": outcome_of(lambda: parallel.shard(model, mesh, nn.LSTM)),
        "recompute": outcome_of(lambda: parallel.recompute(model, kind="half")),
        "cut": outcome_of(lambda: parallel.split(model[0], pipe)),
        "few": outcome_of(lambda: parallel.split(model[:1], pipe)),
        "kind": scheduled(1, micro_batches=4, kind="zero-bubble"),
        "parts": scheduled(2, micro_batches=4),
        "fill": scheduled(1, micro_batches=1),
        "ddp": scheduled(
            1, parallel.replicate(model, mesh, gpu=rank.gpu), micro_batches=2, kind="gpipe"
        ),
        "rounds": scheduled(2, micro_batches=5, kind="interleaved"),
    }


def saves_two_of_one_name(rank, *, folder):
    """Stages whose names both begin at 0."""
    mesh = pg.parallel.mesh(pp=2, gpu=rank.gpu)
    stage = nn.Sequential(Layer())
    return outcome_of(
        lambda: pg.parallel.save(folder, 1, stage, sgd(stage.parameters()), mesh=mesh)
    )


def saves_apart(rank, *, folder):
    """What ranks raise that give other steps, other folders, and what is not JSON."""
    model = nn.Sequential(Layer())
    stepper = sgd(model.parameters())
    mine = f"{folder}/{rank.rank}"
    extra = {"bad": object()} if rank.rank == 0 else None
    return [
        outcome_of(lambda: pg.parallel.save(folder, 1 + rank.rank, model, stepper)),
        outcome_of(lambda: pg.parallel.save(mine, 1, model, stepper)),
        outcome_of(lambda: pg.parallel.save(folder, 1, model, stepper, extra=extra)),
    ]


def saves_on_a_full_disk(rank, *, folder):
    """What all ranks raise where rank 1 may write no more than 1,000 bytes."""
    import resource

    model = pg.parallel.shard(nn.Sequential(Layer()), pg.parallel.mesh(gpu=rank.gpu))
    stepper = sgd(model.parameters())
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        found = outcome_of(lambda: pg.parallel.save(folder, 1, model, stepper))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    dist.barrier()
    return found


def saves_where_only_the_first_may_not(rank, *, folder):
    """What all ranks raise where the first finds the step there already."""
    model = nn.Sequential(Layer())
    stepper = sgd(model.parameters())
    pg.parallel.save(folder, 1, model, stepper)
    return outcome_of(lambda: pg.parallel.save(folder, 1, model, stepper))
