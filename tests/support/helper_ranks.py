"""What the ranks of the tests of collective helpers and of compressed gradients do."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from portagpu.base.errors import CollectiveError, CollectiveMismatch
from portagpu.devices.collectives import compression, helpers
from portagpu.devices.collectives.compression import TopK, top_k_hook


def bits(tensor):
    """The tensor's bytes as integers, so that NaN and -0.0 are distinguished."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def outcome_of(call):
    """What the call raises, as [type, message], or its value."""
    try:
        return call()
    except (CollectiveMismatch, ValueError, NotImplementedError) as error:
        return [type(error).__name__, str(error)]


# ---- helpers


def gathers_uneven(rank, *, rows, dtype, group=False):
    """Row i of rank r has the bytes r, i and zeros."""
    members = dist.new_group([1, 2]) if group else None
    if group and rank.rank == 0:
        return None
    mine = torch.zeros(rows[rank.rank], 3, getattr(torch, dtype).itemsize, dtype=torch.uint8)
    mine[:, 0, 0] = rank.rank
    mine[:, 1, 0] = torch.arange(rows[rank.rank])
    found = helpers.all_gather_uneven(mine.view(getattr(torch, dtype)).squeeze(-1), members)
    return [[list(each.shape), bits(each)] for each in found]


def gathers_what_differs(rank, *, kind):
    mine = torch.zeros(2, 3)
    if rank.rank == 1:
        mine = {
            "shape": torch.zeros(5, 4),
            "dimensions": torch.zeros(2, 3, 1),
            "dtype": torch.zeros(2, 3, dtype=torch.int32),
            "scalar": torch.tensor(1.0),
            "rows": torch.zeros(0, 3),
            "strided": torch.arange(6.0).reshape(3, 2).t(),
        }[kind]
    found = outcome_of(lambda: [each.tolist() for each in helpers.all_gather_uneven(mine)])
    after = torch.ones(1)
    dist.all_reduce(after)
    return [found, after.item()]


def strange_tensors(rank):
    """Tensors without elements, conjugate and sparse ones, and a group of other ranks."""
    empty = [list(each.shape) for each in helpers.all_gather_uneven(torch.ones(2 + rank.rank, 0))]
    mine = torch.tensor([1 + 2j, 3j]).conj()
    gathered = [str(each.tolist()) for each in helpers.all_gather_uneven(mine)]
    whole = torch.empty(2 * rank.world, dtype=mine.dtype)
    helpers.all_gather_bytes(whole, mine)
    sent = (torch.tensor([1.0, 2j]) * (rank.rank + 1)).conj()
    helpers.broadcast_bytes(sent)
    sparse = outcome_of(lambda: helpers.all_gather_uneven(torch.ones(2).to_sparse()))
    wider = outcome_of(lambda: helpers.all_reduce_wider(torch.ones(2).to_sparse()))
    group = dist.new_group([0])
    other = ""
    if rank.rank:
        try:
            helpers.all_gather_uneven(torch.ones(2), group)
        except CollectiveError as error:
            other = str(error)
    return [empty, gathered, str(whole.tolist()), str(sent.tolist()), sparse, wider, other]


def reduces(rank, *, values, dtype, op, name="all_reduce_with_nan", fault=""):
    """The bits of the result on this rank, and of a strided one."""
    if fault == "no guard":
        helpers.all_reduce_with_nan = dist.all_reduce
    elif fault == "no order of negative numbers":
        helpers._turned = lambda each: each.clone()
    elif fault == "not wider":
        helpers._WIDER, helpers._widened = {}, lambda tensor, dtype: tensor.clone()
    mine = torch.tensor(values[rank.rank]).to(getattr(torch, dtype))
    strided = torch.stack([mine, torch.zeros_like(mine)], 1)[:, 0]
    call = getattr(helpers, name)
    op = getattr(dist.ReduceOp, op)
    failure = outcome_of(lambda: (call(mine, op), call(strided, op))[2:])
    return failure or [bits(mine), bits(strided)]


def moves(rank, *, dtype, fault=""):
    """Every byte through each of the three, of rank 1, with what the ranks then have."""
    if fault == "as numbers":
        helpers._flat_bytes = lambda tensor: tensor.reshape(-1)
    kind = getattr(torch, dtype)
    every = torch.arange(256, dtype=torch.uint8)
    mine = (every + 16 * rank.rank).view(kind)
    sent = mine.clone()
    helpers.broadcast_bytes(sent, src=1)
    square = mine.clone().reshape(16, -1)
    helpers.broadcast_bytes(square.t(), src=1)
    gathered = torch.empty(rank.world * len(mine), dtype=kind)
    helpers.all_gather_bytes(gathered, mine)
    # rank r sends r + 1 rows to everybody
    n = rank.world
    sends = (mine[: n * (rank.rank + 1) * 2]).reshape(-1, 2)
    taken = torch.empty(sum(range(1, n + 1)), 2, dtype=kind)
    helpers.all_to_all_bytes(taken, sends, range(1, n + 1), [rank.rank + 1] * n)
    return [bits(each) for each in (sent, square, gathered, taken)]


def moves_what_does_not_fit(rank):
    del rank
    four, half = torch.zeros(4), torch.zeros(4, dtype=torch.float16)
    return [
        outcome_of(lambda: helpers.all_gather_bytes(four, four)),
        outcome_of(lambda: helpers.all_gather_bytes(torch.zeros(8), half)),
        outcome_of(lambda: helpers.all_gather_bytes(torch.zeros(8, 2)[:, 0], four)),
        outcome_of(lambda: helpers.all_to_all_bytes(torch.zeros(4, 2), torch.zeros(4, 3))),
        outcome_of(lambda: helpers.all_to_all_bytes(torch.tensor(1.0), torch.tensor(1.0))),
        outcome_of(lambda: helpers.all_to_all_bytes(four, four, [1, 2], [2, 2])),
        outcome_of(lambda: helpers.all_to_all_bytes(four, four, [2, 2], [-1, 5])),
        outcome_of(lambda: helpers.all_to_all_bytes(torch.zeros(3), torch.zeros(3))),
    ]


def runs_examples(rank, *, blocks, folder):
    """Runs each block of Python, and returns what two of them leave."""
    os.chdir(folder)
    names = {}
    for each in blocks:
        exec(each, names)
    return [
        [each.tolist() for each in names["rows"]],
        str(names["largest"].tolist()),
        names["total"].tolist(),
        sorted(torch.load(f"kept-{rank.rank}.pt")["kept"]),
        names["model"].module.weight.shape == (2, 4),
    ]


# ---- compressed gradients


@contextlib.contextmanager
def broken_compression(fault):
    """Compression with a fault; the ranks end afterwards."""
    take, hook = compression._take, top_k_hook

    def dropped(gradient, kept, count):
        found = take(gradient, kept, count)
        kept.zero_()
        return found

    def unsent(gradient, kept, count):
        places, values = take(gradient, kept, count)
        return places, values * 0.5

    def by_bucket(state, bucket):
        state._names = {id(each): str(bucket.index()) for each in bucket.parameters()}
        return hook(state, bucket)

    if fault in ("dropped", "unsent"):
        compression._take = {"dropped": dropped, "unsent": unsent}[fault]
    yield by_bucket if fault == "by bucket" else hook


def model_of(seed, dtype="float64", width=8):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
    ).to(getattr(torch, dtype))


def wrapped(model, **options):
    # a bucket of 1 KiB or less: several, which change after the first step
    return DistributedDataParallel(model, bucket_cap_mb=0.0002, **options)


def books(rank, *, density, steps, dtype, fault=""):
    """This rank's gradients and the averages, summed over the steps, with what is kept."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)).to(
        getattr(torch, dtype)
    )
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.arange(each.numel()).reshape(each.shape) % 5 - 2)
    ddp = wrapped(model)
    state = TopK(ddp, density)
    buckets, had, applied = [], {}, {}
    with broken_compression(fault) as hook:

        def watched(state, bucket):
            buckets.append([tuple(each.shape) for each in bucket.parameters()])
            for each, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                had[id(each)] = had.get(id(each), 0) + gradient.double()
            return hook(state, bucket)

        ddp.register_comm_hook(state, watched)
        for step in range(steps):
            ddp.zero_grad()
            # whole numbers, so that every sum is exact; another sum of outputs on every rank
            given = torch.arange(12).reshape(3, 4) % (3 + rank.rank) - step % 2
            weights = torch.tensor([1.0, -2.0, 3.0 + rank.rank])
            out = ddp(given.to(getattr(torch, dtype)))
            (out * weights.to(out.dtype)).sum().backward()
            for each in model.parameters():
                applied[id(each)] = applied.get(id(each), 0) + each.grad.double()
    order = list(model.parameters())
    return {
        "had": [had[id(each)].reshape(-1).tolist() for each in order],
        "applied": [applied[id(each)].reshape(-1).tolist() for each in order],
        "kept": [state.kept(each).double().tolist() for each in order],
        "buckets": buckets,
    }


def batch_of(seed, rank, dtype="float64"):
    random = torch.Generator().manual_seed(1000 * seed + rank)
    given = torch.randn(16, 4, generator=random, dtype=torch.float64)
    wanted = torch.stack([given.sum(1).sin(), given[:, 0] * 0.5, given[:, 1] - given[:, 2]], 1)
    dtype = getattr(torch, dtype)
    return given.to(dtype), wanted.to(dtype)


def trains(rank, *, density, steps, dtype="float64", fault="", resume=False, bits_only=False):
    """The losses over all ranks' batches after each tenth step, and the last weights."""
    torch.set_num_threads(1)
    model = model_of(1, dtype, width=32)
    ddp = wrapped(model)
    if density:
        state = TopK(model, density)
        with broken_compression(fault) as hook:
            ddp.register_comm_hook(state, hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        given, wanted = batch_of(step % 4, rank.rank, dtype)
        torch.nn.functional.mse_loss(ddp(given), wanted).backward()
        optimiser.step()
        if resume and step == steps // 2:
            saved = state.state_dict()
            state.clear()
            state.load_state_dict(saved)
        if step % 10 == 9:
            with torch.no_grad():
                whole = [
                    torch.nn.functional.mse_loss(model(given), wanted)
                    for given, wanted in (
                        batch_of(seed, each, dtype) for seed in range(4) for each in range(2)
                    )
                ]
                losses.append(float(sum(whole) / len(whole)))
    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    return [losses, bits(weights) if bits_only else weights.double().tolist()]


def one_parameter(rank, *, gradients, density, dtype="float32", fault=""):
    """The average and what is kept after each of this rank's gradients of one parameter."""
    count = len(gradients[0][0])
    model = torch.nn.Linear(count, 1, bias=False).to(getattr(torch, dtype))
    ddp = DistributedDataParallel(model)
    state = TopK(model, density)
    with broken_compression(fault) as hook:
        ddp.register_comm_hook(state, hook)
    found = []
    for each in gradients:
        ddp.zero_grad()
        ddp(torch.tensor([each[rank.rank]]).to(model.weight.dtype)).sum().backward()
        found.append([
            [str(value) for value in model.weight.grad.reshape(-1).tolist()],
            [str(value) for value in state.kept(model.weight).tolist()],
        ])  # fmt: skip
    return found


class Branches(torch.nn.Module):
    """Two layers, of which each call uses those that it names; a third is never used."""

    def __init__(self):
        super().__init__()
        layers = {name: torch.nn.Linear(3, 2, bias=False) for name in ("a", "b", "never")}
        self.layers = torch.nn.ModuleDict(layers)

    def forward(self, given, names):
        return sum(self.layers[name](given) for name in names)


def unused(rank, *, steps, twice):
    """What this rank had, was given and keeps of each layer; ``steps`` have what each rank uses.

    With ``twice`` each step adds up two passes, the first one without communication.
    """
    model = Branches()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = TopK(model, 0.2)
    ddp.register_comm_hook(state, top_k_hook)
    had = {name: torch.zeros(2, 3) for name in model.layers}
    given = {name: torch.zeros(2, 3) for name in model.layers}
    for number, names in enumerate(steps):
        ddp.zero_grad()
        used = names[rank.rank]
        # whole numbers, so that every sum is exact
        rows = torch.tensor([[1.0 + number, 2.0 * rank.rank - 3, 5.0]])
        weights = torch.tensor([2.0, -4.0 - number])
        with ddp.no_sync() if twice else contextlib.nullcontext():
            for _ in range(twice):
                (ddp(rows, used) @ weights).sum().backward()
        (ddp(rows, used) @ weights).sum().backward()
        for name in used:
            had[name] += (1 + twice) * weights[:, None] * rows
        for name, layer in model.layers.items():
            if layer.weight.grad is not None:
                given[name] += layer.weight.grad
    keeps = {name: state.kept(layer.weight) for name, layer in model.layers.items()}
    return [
        [part[name].reshape(-1).tolist() for part in (had, given, keeps)] for name in model.layers
    ]


def strange_uses(rank):
    """What each wrong use raises, and that the rank can go on."""
    model = torch.nn.Linear(2, 1)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(TopK(torch.nn.Linear(2, 1), 0.5), top_k_hook)
    found = []
    try:
        ddp(torch.ones(1, 2)).sum().backward()
    except (ValueError, RuntimeError) as error:
        found.append(str(error).splitlines()[0])
    other = DistributedDataParallel(torch.nn.Linear(2, 1))
    other.register_comm_hook(TopK(other, 0.5 if rank.rank else 0.25), top_k_hook)
    try:
        other(torch.ones(1, 2)).sum().backward()
    except (CollectiveMismatch, RuntimeError) as error:
        found.append(str(error).splitlines()[0])
    return found
