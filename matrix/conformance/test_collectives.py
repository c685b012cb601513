"""Collectives: reductions, movement and layout, over the backend's own communication library.

Functions whose name begins with an underscore run on every rank; they return lists, and the oracles
are worked out here in Python's own numbers. Sums use small whole numbers, which are exact in any
order, or random numbers with the bound (n-1) u sum|x| of a sum of n terms in any order (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2). What a library cannot move it must
refuse with an error; to move it wrongly is a failure.
"""

from __future__ import annotations

import itertools
import math
from functools import reduce

from portagpu.contract import Capability
from portagpu.suite import case, refused

COLLECTIVES = Capability.COLLECTIVES
WORLDS = (1, 2, 4)
SEVERAL = (2, 4)
FLOATS = ("float64", "float32", "bfloat16", "float16")
EVERY = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "complex64", "float8_e4m3fn")
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
REFUSED = "refused: "


def payload(rank, count=12):
    """Whole numbers from -5 to 5, other ones on every rank."""
    return [(7 * rank + 3 * place) % 11 - 5 for place in range(count)]


def total(n, count=12):
    """The sums of every rank's payload."""
    return [
        sum(column) for column in zip(*(payload(rank, count) for rank in range(n)), strict=True)
    ]


def _tensor(rank, values, dtype="float32"):
    import torch

    return torch.tensor(values).to(getattr(torch, dtype)).to(rank.gpu.device)


def _list(tensor):
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.cpu().to(wide).real.tolist()


def _or_refused(call):
    """What the call gives, or that it was refused: only a typed error is a refusal."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{REFUSED}{type(error).__name__}"


def right_or_refused(found, expected, what):
    """Either every rank has what is expected, or every rank has refused."""
    if all(isinstance(each, str) and each.startswith(REFUSED) for each in found):
        return
    for rank, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert got == wanted, f"{what}: rank {rank} got {got}, not {wanted}"


def each_has(found, expected, what):
    """Every rank has what is expected of it."""
    for rank, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert got == wanted, f"{what}: rank {rank} got {got}, not {wanted}"


# --- the world itself


def _who_am_i(rank):
    import torch.distributed as dist

    return [dist.get_rank(), dist.get_world_size(), dist.is_initialized(), dist.get_backend()]


@case(
    "collectives/ranks-know-themselves",
    spec="Every rank knows its number and the number of ranks, over the library that is claimed.",
    capability=COLLECTIVES,
    covers=("Comm.c10d_name",),
    traps=("C10",),
    params={"n": WORLDS},
)
def test_ranks_know_themselves(gpu, world, n):
    for rank, (number, size, ready, library) in enumerate(world(n, _who_am_i)):
        assert (number, size, ready) == (rank, n, True), f"rank {rank} is {number} of {size}"
        named = library.rpartition(":")[2]
        assert named == gpu.comm.c10d_name, f"rank {rank} runs on {library}"


@case(
    "collectives/library-is-named",
    spec="The library has a name, and its version is a text or unknown.",
    covers=("Backend.comm", "Comm.library", "Comm.version"),
    traps=("C05",),
)
def test_library_is_named(gpu):
    assert gpu.comm.library.strip(), "the communication library has no name"
    version = gpu.comm.version
    assert version is None or version.strip(), "an unknown version is empty instead of None"


@case(
    "collectives/library-moves-this-device",
    spec="The communication library moves tensors of this device's type.",
    covers=("Comm.device_type",),
)
def test_library_moves_this_device(gpu):
    moves = gpu.comm.device_type
    assert moves == gpu.device.type, f"the library moves {moves}, the device is {gpu.device.type}"


@case(
    "collectives/init-string",
    spec="The string for init_process_group names a library for this device and for the CPU.",
    covers=("Comm.init_string",),
    traps=("C10",),
)
def test_init_string(gpu, torch):
    config = torch.distributed.distributed_c10d.BackendConfig(
        torch.distributed.Backend(gpu.comm.init_string)
    )
    found = config.get_device_backend_map()
    assert found.get(gpu.device.type) == gpu.comm.c10d_name, f"{gpu.comm.init_string}: {found}"
    assert "cpu" in found, f"{gpu.comm.init_string} leaves CPU tensors without a library"


@case(
    "collectives/reduce-ops-exist",
    spec="Every reduce op that is claimed is one of torch's.",
    covers=("Comm.reduce_ops",),
)
def test_reduce_ops_exist(gpu, torch):
    strange = [
        name for name in gpu.comm.reduce_ops if not hasattr(torch.distributed.ReduceOp, name)
    ]
    assert not strange, f"torch has no reduce op {', '.join(strange)}"


@case(
    "collectives/device-ids",
    spec="The device_ids for DistributedDataParallel name this device, or are None on a CPU.",
    covers=("Comm.device_ids",),
)
def test_device_ids(gpu):
    expected = None if gpu.device.type == "cpu" else (gpu.index,)
    assert gpu.comm.device_ids == expected, f"device_ids are {gpu.comm.device_ids}"


@case(
    "collectives/local-environment",
    spec="The environment for ranks of one machine is text, and the ranks have it.",
    covers=("Comm.local_env",),
    capability=COLLECTIVES,
)
def test_local_environment(gpu, world):
    wanted = dict(gpu.comm.local_env or {})
    for rank, found in enumerate(world(2, _environment, names=sorted(wanted))):
        assert found == wanted, f"rank {rank} has the environment {found}, not {wanted}"


def _environment(rank, names):
    import os

    return {name: os.environ.get(name) for name in names}


def _host_tensor(rank):
    import torch
    import torch.distributed as dist

    value = torch.tensor(payload(rank.rank))
    dist.all_reduce(value)
    return value.tolist()


@case(
    "collectives/host-tensors-move-too",
    spec="A tensor on the host is summed over the same group, whatever the device is.",
    capability=COLLECTIVES,
    covers=("Comm.init_string",),
)
def test_host_tensors_move_too(world):
    each_has(world(2, _host_tensor), [total(2)] * 2, "a sum of host tensors")


# --- reductions


def _all_reduce(rank, dtype, op="SUM", values=None):
    import torch.distributed as dist

    mine = payload(rank.rank) if values is None else values[rank.rank]

    def call():
        value = _tensor(rank, mine, dtype)
        dist.all_reduce(value, op=getattr(dist.ReduceOp, op))
        return _list(value)

    return _or_refused(call)


@case(
    "collectives/all-reduce-sum",
    spec="all_reduce sums whole numbers exactly, or refuses the dtype.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={"dtype": EVERY, "n": SEVERAL},
    smoke=True,
)
def test_all_reduce_sum(world, dtype, n):
    expected = total(n)
    if dtype == "uint8":
        expected = [
            sum(payload(rank)[place] % 256 for rank in range(n)) % 256 for place in range(12)
        ]
    found = world(n, _all_reduce, dtype=dtype)
    right_or_refused(found, [expected] * n, f"a sum of {dtype}")


@case(
    "collectives/claimed-dtypes-sum",
    spec="float32, float64, float16, bfloat16 and int64 are never refused.",
    capability=COLLECTIVES,
    params={"dtype": (*FLOATS, "int64")},
)
def test_claimed_dtypes_sum(world, dtype):
    each_has(world(2, _all_reduce, dtype=dtype), [total(2)] * 2, f"a sum of {dtype}")


@case(
    "collectives/all-reduce-alone",
    spec="all_reduce of one rank leaves its values as they are.",
    capability=COLLECTIVES,
    params={"op": ("SUM", "AVG", "MAX", "MIN", "PRODUCT")},
)
def test_all_reduce_alone(world, op):
    found = world(1, _all_reduce, dtype="float32", op=op)
    right_or_refused(found, [payload(0)], f"{op} of one rank")


def _fold(op, columns):
    return {
        "SUM": lambda: [sum(column) for column in columns],
        "AVG": lambda: [sum(column) / len(column) for column in columns],
        "PRODUCT": lambda: [math.prod(column) for column in columns],
        "MIN": lambda: [min(column) for column in columns],
        "MAX": lambda: [max(column) for column in columns],
        "BAND": lambda: [reduce(lambda a, b: a & b, column) for column in columns],
        "BOR": lambda: [reduce(lambda a, b: a | b, column) for column in columns],
        "BXOR": lambda: [reduce(lambda a, b: a ^ b, column) for column in columns],
    }[op]()


def _columns(n):
    return list(zip(*(payload(rank) for rank in range(n)), strict=True))


@case(
    "collectives/all-reduce-op",
    spec="all_reduce does a claimed op exactly; one that is not claimed is right or refused.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("SUM", "AVG", "PRODUCT", "MIN", "MAX"), "n": SEVERAL},
)
def test_all_reduce_op(gpu, world, op, n):
    expected = [_fold(op, _columns(n))] * n
    found = world(n, _all_reduce, dtype="float32", op=op)
    judge = each_has if op in gpu.comm.reduce_ops else right_or_refused
    judge(found, expected, f"all_reduce {op}")


@case(
    "collectives/all-reduce-op-bfloat16",
    spec="all_reduce does a claimed reduce op exactly on small whole numbers in bfloat16.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("SUM", "AVG", "MIN", "MAX")},
)
def test_all_reduce_op_bfloat16(gpu, world, op):
    expected = [_fold(op, _columns(2))] * 2
    found = world(2, _all_reduce, dtype="bfloat16", op=op)
    judge = each_has if op in gpu.comm.reduce_ops else right_or_refused
    judge(found, expected, f"all_reduce {op} in bfloat16")


@case(
    "collectives/bitwise-ops",
    spec="A bitwise reduce op on integers is exact, or refused.",
    capability=COLLECTIVES,
    params={"op": ("BAND", "BOR", "BXOR")},
)
def test_bitwise_ops(world, op):
    found = world(4, _all_reduce, dtype="int32", op=op)
    right_or_refused(found, [_fold(op, _columns(4))] * 4, f"all_reduce {op} on integers")


@case(
    "collectives/bitwise-ops-on-floats",
    spec="A bitwise reduce op on floating-point numbers is refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
    params={"op": ("BAND", "BOR", "BXOR")},
)
def test_bitwise_ops_on_floats(world, op):
    for rank, found in enumerate(world(2, _all_reduce, dtype="float32", op=op)):
        assert str(found).startswith(REFUSED), f"rank {rank} did {op} on floats: {found}"


@case(
    "collectives/average-of-integers",
    spec="AVG of integers, whose average is whole, is exact or refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
    traps=("C02",),
)
def test_average_of_integers(world):
    values = [[2, -4, 6], [4, -8, 2]]
    found = world(2, _all_reduce, dtype="int32", op="AVG", values=values)
    right_or_refused(found, [[3, -6, 4]] * 2, "AVG of integers")


def _premultiplied(rank):
    import torch.distributed as dist

    def call():
        value = _tensor(rank, [float(rank.rank + 1)])
        dist.all_reduce(value, op=dist._make_nccl_premul_sum(2.0))
        return _list(value)

    return _or_refused(call)


@case(
    "collectives/premultiplied-sum",
    spec="PREMUL_SUM multiplies before it sums, or is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_premultiplied_sum(world):
    right_or_refused(world(2, _premultiplied), [[6.0]] * 2, "PREMUL_SUM by 2 of 1 and 2")


@case(
    "collectives/integers-wrap",
    spec="A sum of int8 wraps around as its arithmetic does.",
    capability=COLLECTIVES,
)
def test_integers_wrap(world):
    values = [[100, -100, 127]] * 4
    found = world(4, _all_reduce, dtype="int8", values=values)
    right_or_refused(found, [[-112, 112, -4]] * 4, "four times 100, -100 and 127 in int8")


def _random(rank, dtype, count, repeat=1):
    """The sums of random numbers, each rank's numbers from a seed of its own."""
    import torch
    import torch.distributed as dist

    numbers = torch.randn(count, generator=torch.Generator().manual_seed(100 + rank.rank))
    found = []
    for _ in range(repeat):
        value = numbers.to(getattr(torch, dtype), copy=True).to(rank.gpu.device)
        dist.all_reduce(value)
        found.append(_list(value))
    return found


def _random_inputs(torch, dtype, count, n):
    return [
        torch.randn(count, generator=torch.Generator().manual_seed(100 + rank))
        .to(getattr(torch, dtype))
        .double()
        for rank in range(n)
    ]


@case(
    "collectives/random-sum-is-bounded",
    spec="A sum of random numbers is near the sum in float64.",
    capability=COLLECTIVES,
    outcome="bounded: (n-1) u sum|x| + u |sum|",
    params={"dtype": FLOATS, "n": SEVERAL},
)
def test_random_sum_is_bounded(torch, world, dtype, n):
    count = 2000
    inputs = torch.stack(_random_inputs(torch, dtype, count, n))
    exact, magnitude = inputs.sum(0), inputs.abs().sum(0)
    bound = ((n - 1) * UNIT[dtype] * magnitude + UNIT[dtype] * exact.abs()) * 1.0001 + 2.0**-1000
    for rank, (found,) in enumerate(world(n, _random, dtype=dtype, count=count)):
        worst = float(((torch.tensor(found, dtype=torch.float64) - exact).abs() / bound).max())
        assert worst <= 1.0, f"rank {rank}: a sum of {dtype} is {worst:.2f} times the bound off"


@case(
    "collectives/ranks-agree",
    spec="All ranks get bitwise the same sum of random numbers.",
    capability=COLLECTIVES,
    params={"dtype": ("float32", "bfloat16")},
)
def test_ranks_agree(world, dtype):
    found = world(4, _random, dtype=dtype, count=3000)
    for rank, mine in enumerate(found):
        wrong = sum(a != b for a, b in zip(mine[0], found[0][0], strict=True))
        assert wrong == 0, f"rank {rank} differs from rank 0 in {wrong} of 3000 sums of {dtype}"


@case(
    "collectives/sums-repeat",
    spec="The same sum twice is bitwise the same.",
    capability=COLLECTIVES,
    traps=("P18",),
)
def test_sums_repeat(world):
    for rank, (first, *again) in enumerate(
        world(4, _random, dtype="float32", count=3000, repeat=4)
    ):
        assert all(each == first for each in again), f"rank {rank}: a repeated sum differs"


@case(
    "collectives/cancellation",
    spec="A sum whose terms cancel is near the exact one in every order of the ranks.",
    capability=COLLECTIVES,
    outcome="bounded: (n-1) u sum|x| + u |sum|, u = 2^-24",
)
def test_cancellation(world):
    orders = list(itertools.permutations([1e8, 1.0, -1e8, 1.0]))
    values = [[order[rank] for order in orders] for rank in range(4)]
    bound = 3 * UNIT["float32"] * 200_000_002.0 + UNIT["float32"] * 2.0
    for rank, found in enumerate(world(4, _all_reduce, dtype="float32", values=values)):
        worst = max(abs(each - 2.0) for each in found)
        assert worst <= bound, f"rank {rank}: 1e8 + 1 - 1e8 + 1 is {worst} off, bound {bound}"


@case(
    "collectives/special-values",
    spec="A sum follows IEEE 754: infinities, minus zero and subnormal numbers.",
    capability=COLLECTIVES,
    traps=("P13",),
)
def test_special_values(world):
    tiny = 2.0**-149
    values = [[math.inf, math.inf, -0.0, tiny, math.nan], [1.0, -math.inf, -0.0, 2 * tiny, 1.0]]
    for rank, found in enumerate(world(2, _all_reduce, dtype="float32", values=values)):
        assert found[0] == math.inf, f"rank {rank}: inf + 1 is {found[0]}"
        assert math.isnan(found[1]), f"rank {rank}: inf - inf is {found[1]}"
        assert math.copysign(1, found[2]) == -1.0, f"rank {rank}: -0.0 + -0.0 is {found[2]}"
        assert found[3] == 3 * tiny, f"rank {rank}: subnormal numbers add up to {found[3]}"
        assert math.isnan(found[4]), f"rank {rank}: NaN + 1 is {found[4]}"


@case(
    "collectives/nan-in-maximum",
    spec="Whether a NaN of one rank survives MAX and MIN depends on library and order.",
    capability=COLLECTIVES,
    outcome="undefined",
    traps=("P20",),
    params={"op": ("MAX", "MIN")},
)
def test_nan_in_maximum(world, op, record):
    values = [[0.0, math.nan], [math.nan, 1.0], [2.0, 2.0]]
    found = world(3, _all_reduce, dtype="float32", op=op, values=values)
    record(f"{op} over 0, NaN, 2 gave {found[0][0]}, over NaN, 1, 2 gave {found[0][1]}")


# --- layout and size


def _sizes(rank, sizes):
    import torch.distributed as dist

    wrong = []
    for size in sizes:
        value = _tensor(rank, payload(rank.rank, size))
        dist.all_reduce(value)
        if _list(value) != total(rank.world, size):
            wrong.append(size)
    return wrong


@case(
    "collectives/every-size",
    spec="all_reduce is exact for sizes below, at and above the number of ranks, and for odd ones.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_every_size(world, n):
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 1023, 65537]
    for rank, wrong in enumerate(world(n, _sizes, sizes=sizes)):
        assert not wrong, f"rank {rank}: the sums of {wrong} elements are wrong"


def _empty(rank, name):
    import torch
    import torch.distributed as dist

    nothing = torch.empty(0, device=rank.gpu.device)
    if name == "all-reduce":
        dist.all_reduce(nothing)
    elif name == "broadcast":
        dist.broadcast(nothing, 0)
    elif name == "all-gather":
        nothing = torch.empty(0, device=rank.gpu.device)
        dist.all_gather_into_tensor(nothing, torch.empty(0, device=rank.gpu.device))
    else:
        dist.reduce_scatter_tensor(nothing, torch.empty(0, device=rank.gpu.device))
    after = torch.ones(1, device=rank.gpu.device)
    dist.all_reduce(after)
    return [nothing.numel(), float(after)]


@case(
    "collectives/nothing-at-all",
    spec="A collective over no element does nothing, and the next one works.",
    capability=COLLECTIVES,
    params={"name": ("all-reduce", "broadcast", "all-gather", "reduce-scatter")},
)
def test_nothing_at_all(world, name):
    each_has(world(2, _empty, name=name), [[0, 2.0]] * 2, f"{name} of nothing")


def _strided(rank):
    import torch.distributed as dist

    def call():
        value = _tensor(rank, payload(rank.rank)).reshape(3, 4).t()
        dist.all_reduce(value)
        return _list(value.t().reshape(-1))

    return _or_refused(call)


@case(
    "collectives/strided-all-reduce",
    spec="all_reduce of a transposed tensor is right in its own order, or refused.",
    capability=COLLECTIVES,
)
def test_strided_all_reduce(world):
    right_or_refused(world(2, _strided), [total(2)] * 2, "a sum of transposed tensors")


def _strided_gather(rank):
    import torch
    import torch.distributed as dist

    def call():
        mine = _tensor(rank, payload(rank.rank)).reshape(3, 4).t()
        parts = [torch.zeros(3, 4, device=rank.gpu.device).t() for _ in range(rank.world)]
        dist.all_gather(parts, mine)
        return [_list(part.t().reshape(-1)) for part in parts]

    return _or_refused(call)


@case(
    "collectives/strided-all-gather",
    spec="all_gather of transposed tensors keeps every element in its place, or is refused.",
    capability=COLLECTIVES,
)
def test_strided_all_gather(world):
    expected = [[payload(0), payload(1)]] * 2
    right_or_refused(world(2, _strided_gather), expected, "gathered transposed tensors")


def _offset(rank, offset):
    import torch
    import torch.distributed as dist

    base = torch.full((32,), 77.0, device=rank.gpu.device)
    base[offset : offset + 12] = _tensor(rank, payload(rank.rank))
    dist.all_reduce(base[offset : offset + 12])
    return _list(base)


@case(
    "collectives/misaligned-slices",
    spec="all_reduce of a slice at an odd offset is exact and leaves its neighbours as they were.",
    capability=COLLECTIVES,
    params={"offset": (1, 3, 7)},
)
def test_misaligned_slices(world, offset):
    expected = [77.0] * offset + total(2) + [77.0] * (20 - offset)
    each_has(world(2, _offset, offset=offset), [expected] * 2, f"a slice at {offset}")


def _large(rank, count):
    import torch
    import torch.distributed as dist

    value = torch.full((count,), float(rank.rank + 1), device=rank.gpu.device)
    dist.all_reduce(value)
    return [float(value.min()), float(value.max())]


@case(
    "collectives/megabytes",
    spec="all_reduce of 16 MiB has the sum in every element.",
    capability=COLLECTIVES,
    does_not_show="sizes above 2^31 elements or 4 GiB",
)
def test_megabytes(world):
    each_has(world(2, _large, count=1 << 22), [[3.0, 3.0]] * 2, "the least and largest sum")


def _shapes(rank):
    import torch
    import torch.distributed as dist

    found = []
    for shape in ((), (1,), (2, 3, 4), (1, 1, 5)):
        value = torch.ones(shape, device=rank.gpu.device)
        dist.all_reduce(value)
        found.append([list(value.shape), float(value.sum())])
    return found


@case(
    "collectives/shapes-are-kept",
    spec="all_reduce keeps the shape of its tensor, a scalar's too.",
    capability=COLLECTIVES,
)
def test_shapes_are_kept(world):
    expected = [[[], 2.0], [[1], 2.0], [[2, 3, 4], 48.0], [[1, 1, 5], 10.0]]
    each_has(world(2, _shapes), [expected] * 2, "shapes and sums")


# --- gathering and scattering


def _all_gather(rank, dtype="float32"):
    import torch
    import torch.distributed as dist

    def call():
        mine = _tensor(rank, payload(rank.rank), dtype)
        parts = [torch.zeros_like(mine) for _ in range(rank.world)]
        dist.all_gather(parts, mine)
        return [_list(part) for part in parts]

    return _or_refused(call)


@case(
    "collectives/all-gather",
    spec="all_gather gives every rank every rank's tensor, in the order of ranks.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_all_gather(world, n):
    expected = [payload(rank) for rank in range(n)]
    each_has(world(n, _all_gather), [expected] * n, "all_gather")


@case(
    "collectives/all-gather-dtypes",
    spec="all_gather moves a dtype bit by bit, or refuses it.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={
        "dtype": (
            "bfloat16",
            "float16",
            "float64",
            "int64",
            "int16",
            "int8",
            "float8_e4m3fn",
            "complex64",
        )
    },
)
def test_all_gather_dtypes(world, dtype):
    expected = [payload(0), payload(1)]
    right_or_refused(world(2, _all_gather, dtype=dtype), [expected] * 2, f"all_gather of {dtype}")


def _all_gather_into(rank, aliased=False):
    import torch
    import torch.distributed as dist

    whole = torch.zeros(12 * rank.world, device=rank.gpu.device)
    mine = _tensor(rank, payload(rank.rank))
    if aliased:
        part = whole[12 * rank.rank : 12 * (rank.rank + 1)]
        part.copy_(mine)
        mine = part
    dist.all_gather_into_tensor(whole, mine)
    return _list(whole)


@case(
    "collectives/all-gather-into-tensor",
    spec="all_gather_into_tensor lays the ranks' tensors one after the other.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_all_gather_into_tensor(world, n):
    expected = [value for rank in range(n) for value in payload(rank)]
    each_has(world(n, _all_gather_into), [expected] * n, "all_gather_into_tensor")


@case(
    "collectives/all-gather-in-place",
    spec="all_gather_into_tensor works on an input that is its own part of the output.",
    capability=COLLECTIVES,
)
def test_all_gather_in_place(world):
    expected = [value for rank in range(4) for value in payload(rank)]
    each_has(world(4, _all_gather_into, aliased=True), [expected] * 4, "all_gather in place")


def _uneven_gather(rank):
    import torch
    import torch.distributed as dist

    def call():
        parts = [torch.zeros(each + 1, device=rank.gpu.device) for each in range(rank.world)]
        dist.all_gather(
            parts, torch.full((rank.rank + 1,), 1.0 + rank.rank, device=rank.gpu.device)
        )
        return [_list(part) for part in parts]

    return _or_refused(call)


@case(
    "collectives/uneven-all-gather",
    spec="all_gather of tensors of different sizes is right, or refused on every rank.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_uneven_all_gather(world):
    expected = [[[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]]] * 3
    right_or_refused(world(3, _uneven_gather), expected, "an uneven all_gather")


def _wrong_output(rank):
    import torch
    import torch.distributed as dist

    def call():
        whole = torch.zeros(rank.world + 1, device=rank.gpu.device)
        dist.all_gather_into_tensor(whole, torch.zeros(1, device=rank.gpu.device))
        return "accepted"

    return _or_refused(call)


@case(
    "collectives/wrong-output-size",
    spec="An output that does not fit the number of ranks is refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_wrong_output_size(world):
    for rank, found in enumerate(world(2, _wrong_output)):
        assert found.startswith(REFUSED), f"rank {rank} accepted three places for two ranks"


def _reduce_scatter(rank, op="SUM", dtype="float32"):
    import torch
    import torch.distributed as dist

    def call():
        whole = _tensor(rank, payload(rank.rank, 3 * rank.world), dtype)
        mine = torch.zeros(3, dtype=whole.dtype, device=rank.gpu.device)
        dist.reduce_scatter_tensor(mine, whole, op=getattr(dist.ReduceOp, op))
        return _list(mine)

    return _or_refused(call)


def _shares(n, op="SUM"):
    columns = list(zip(*(payload(rank, 3 * n) for rank in range(n)), strict=True))
    whole = _fold(op, columns)
    return [whole[3 * rank : 3 * rank + 3] for rank in range(n)]


@case(
    "collectives/reduce-scatter",
    spec="reduce_scatter_tensor gives rank r the r-th part of the sum.",
    capability=COLLECTIVES,
    params={"n": WORLDS},
)
def test_reduce_scatter(world, n):
    each_has(world(n, _reduce_scatter), _shares(n), "reduce_scatter_tensor")


@case(
    "collectives/reduce-scatter-op",
    spec="reduce_scatter_tensor does every claimed reduce op exactly.",
    capability=COLLECTIVES,
    covers=("Comm.reduce_ops",),
    params={"op": ("AVG", "PRODUCT", "MIN", "MAX")},
)
def test_reduce_scatter_op(gpu, world, op):
    found = world(2, _reduce_scatter, op=op)
    judge = each_has if op in gpu.comm.reduce_ops else right_or_refused
    judge(found, _shares(2, op), f"reduce_scatter {op}")


@case(
    "collectives/reduce-scatter-dtypes",
    spec="reduce_scatter_tensor sums small whole numbers exactly in 16-bit formats.",
    capability=COLLECTIVES,
    params={"dtype": ("bfloat16", "float16")},
)
def test_reduce_scatter_dtypes(world, dtype):
    each_has(world(2, _reduce_scatter, dtype=dtype), _shares(2), f"reduce_scatter of {dtype}")


def _reduce_scatter_list(rank, uneven=False):
    import torch
    import torch.distributed as dist

    sizes = [each + 1 if uneven else 2 for each in range(rank.world)]

    def call():
        parts = [
            torch.full((size,), rank.rank + 1.0, device=rank.gpu.device) * (place + 1)
            for place, size in enumerate(sizes)
        ]
        mine = torch.zeros(sizes[rank.rank], device=rank.gpu.device)
        dist.reduce_scatter(mine, parts)
        return _list(mine)

    return _or_refused(call)


@case(
    "collectives/reduce-scatter-list",
    spec="reduce_scatter of a list gives rank r the sum of the r-th tensors.",
    capability=COLLECTIVES,
)
def test_reduce_scatter_list(world):
    expected = [[6.0 * (rank + 1)] * 2 for rank in range(3)]
    each_has(world(3, _reduce_scatter_list), expected, "reduce_scatter of a list")


@case(
    "collectives/uneven-reduce-scatter",
    spec="reduce_scatter of tensors of different sizes is right, or refused.",
    capability=COLLECTIVES,
)
def test_uneven_reduce_scatter(world):
    expected = [[6.0 * (rank + 1)] * (rank + 1) for rank in range(3)]
    right_or_refused(world(3, _reduce_scatter_list, uneven=True), expected, "an uneven scatter")


def _composed(rank):
    import torch
    import torch.distributed as dist

    whole = _tensor(rank, payload(rank.rank, 4 * rank.world))
    part = torch.zeros(4, device=rank.gpu.device)
    dist.reduce_scatter_tensor(part, whole)
    again = torch.zeros_like(whole)
    dist.all_gather_into_tensor(again, part)
    dist.all_reduce(whole)
    return [_list(again), _list(whole)]


@case(
    "collectives/composition",
    spec="reduce_scatter followed by all_gather is all_reduce, on whole numbers.",
    capability=COLLECTIVES,
    smoke=True,
)
def test_composition(world):
    expected = [total(4, 16), total(4, 16)]
    each_has(world(4, _composed), [expected] * 4, "both ways to a sum")


def _broadcast(rank, root, dtype="float32"):
    import torch.distributed as dist

    def call():
        value = _tensor(rank, payload(rank.rank), dtype)
        dist.broadcast(value, root)
        return _list(value)

    return _or_refused(call)


@case(
    "collectives/broadcast",
    spec="broadcast gives every rank the root's tensor.",
    capability=COLLECTIVES,
    params={"root": (0, 1, 3)},
    smoke=True,
)
def test_broadcast(world, root):
    each_has(world(4, _broadcast, root=root), [payload(root)] * 4, f"a broadcast from {root}")


@case(
    "collectives/broadcast-dtypes",
    spec="broadcast moves a dtype bit by bit, or refuses it.",
    capability=COLLECTIVES,
    traps=("C01",),
    params={"dtype": ("bfloat16", "float64", "int64", "int16", "float8_e4m3fn")},
)
def test_broadcast_dtypes(world, dtype):
    found = world(2, _broadcast, root=1, dtype=dtype)
    right_or_refused(found, [payload(1)] * 2, f"a broadcast of {dtype}")


@case(
    "collectives/broadcast-alone",
    spec="broadcast in a world of one rank changes nothing.",
    capability=COLLECTIVES,
)
def test_broadcast_alone(world):
    each_has(world(1, _broadcast, root=0), [payload(0)], "a broadcast to itself")


def _reduce(rank, root):
    import torch.distributed as dist

    value = _tensor(rank, payload(rank.rank))
    dist.reduce(value, root)
    return _list(value)


@case(
    "collectives/reduce",
    spec="reduce gives the root the sum.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_reduce(world, root):
    found = world(4, _reduce, root=root)[root]
    assert found == total(4), f"rank {root} got {found}, not {total(4)}"


@case(
    "collectives/reduce-elsewhere",
    spec="What reduce leaves in the buffers of the other ranks is not specified.",
    capability=COLLECTIVES,
    outcome="undefined",
)
def test_reduce_elsewhere(world, record):
    found = world(3, _reduce, root=0)
    kept = [rank for rank in (1, 2) if found[rank] == payload(rank)]
    record(f"ranks that kept their own values: {kept or 'none'}")


def _scatter(rank, root):
    import torch
    import torch.distributed as dist

    parts = None
    if rank.rank == root:
        parts = [_tensor(rank, payload(each)) for each in range(rank.world)]
    mine = torch.zeros(12, device=rank.gpu.device)
    dist.scatter(mine, parts, src=root)
    return _list(mine)


@case(
    "collectives/scatter",
    spec="scatter gives rank r the r-th tensor of the root.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_scatter(world, root):
    expected = [payload(rank) for rank in range(3)]
    each_has(world(3, _scatter, root=root), expected, f"a scatter from {root}")


def _gather(rank, root):
    import torch
    import torch.distributed as dist

    parts = None
    if rank.rank == root:
        parts = [torch.zeros(12, device=rank.gpu.device) for _ in range(rank.world)]
    dist.gather(_tensor(rank, payload(rank.rank)), parts, dst=root)
    return None if parts is None else [_list(part) for part in parts]


@case(
    "collectives/gather",
    spec="gather gives the root every rank's tensor, in the order of ranks.",
    capability=COLLECTIVES,
    params={"root": (0, 2)},
)
def test_gather(world, root):
    expected = [None] * 3
    expected[root] = [payload(rank) for rank in range(3)]
    each_has(world(3, _gather, root=root), expected, f"a gather at {root}")


def _list_elsewhere(rank):
    import torch
    import torch.distributed as dist

    if rank.rank == 0:
        return "root"
    part = torch.zeros(1, device=rank.gpu.device)
    error = refused(
        lambda: dist.scatter(part, [part, part], src=0), ValueError, "a list on a rank without root"
    )
    return type(error).__name__


@case(
    "collectives/scatter-list-elsewhere",
    spec="A list of tensors to scatter on a rank that is not the root is refused.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_scatter_list_elsewhere(world):
    each_has(world(2, _list_elsewhere), ["root", "ValueError"], "a list elsewhere")


def _objects(rank):
    import torch.distributed as dist

    everyone = [None] * rank.world
    dist.all_gather_object(everyone, {"rank": rank.rank, "text": "ü" * rank.rank})
    told = [{"seed": 7}, [1, 2]] if rank.rank == 1 else [None, None]
    dist.broadcast_object_list(told, 1)
    return [everyone, told]


@case(
    "collectives/objects",
    spec="Python objects are gathered and broadcast as they are.",
    capability=COLLECTIVES,
)
def test_objects(world):
    everyone = [{"rank": rank, "text": "ü" * rank} for rank in range(3)]
    expected = [everyone, [{"seed": 7}, [1, 2]]]
    each_has(world(3, _objects), [expected] * 3, "gathered and broadcast objects")


def _all_to_all(rank, form):
    import torch
    import torch.distributed as dist

    def call():
        sent = [_tensor(rank, [10.0 * rank.rank + each]) for each in range(rank.world)]
        if form == "list":
            got = [torch.zeros(1, device=rank.gpu.device) for _ in range(rank.world)]
            dist.all_to_all(got, sent)
            return _list(torch.cat(got))
        whole = torch.zeros(rank.world, device=rank.gpu.device)
        dist.all_to_all_single(whole, torch.cat(sent))
        return _list(whole)

    return _or_refused(call)


@case(
    "collectives/all-to-all",
    spec="all_to_all gives rank r the r-th part of every rank.",
    capability=COLLECTIVES,
    params={"form": ("single", "list"), "n": SEVERAL},
)
def test_all_to_all(world, form, n):
    expected = [[10.0 * source + rank for source in range(n)] for rank in range(n)]
    right_or_refused(world(n, _all_to_all, form=form), expected, "all_to_all")


def _uneven_all_to_all(rank):
    import torch
    import torch.distributed as dist

    # rank r sends r elements to everyone: rank 0 sends nothing at all
    sends = [rank.rank] * rank.world
    receives = list(range(rank.world))
    sent = torch.full((sum(sends),), float(rank.rank), device=rank.gpu.device)
    got = torch.zeros(sum(receives), device=rank.gpu.device)
    dist.all_to_all_single(got, sent, receives, sends)
    return _list(got)


@case(
    "collectives/uneven-all-to-all",
    spec="all_to_all_single moves parts of different sizes, of size zero too.",
    capability=COLLECTIVES,
)
def test_uneven_all_to_all(world):
    each_has(world(3, _uneven_all_to_all), [[1.0, 2.0, 2.0]] * 3, "uneven parts")


def _wrong_splits(rank):
    import torch
    import torch.distributed as dist

    def call():
        value = torch.zeros(3, device=rank.gpu.device)
        dist.all_to_all_single(torch.zeros_like(value), value, [2, 0], [2, 0])
        return "accepted"

    return _or_refused(call)


@case(
    "collectives/wrong-splits",
    spec="Splits that do not add up to the tensor are refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_wrong_splits(world):
    for rank, found in enumerate(world(2, _wrong_splits)):
        assert found.startswith(REFUSED), f"rank {rank} accepted splits of 2 for 3 elements"


# --- point to point


def _send(rank):
    import torch
    import torch.distributed as dist

    value = _tensor(rank, payload(rank.rank))
    got = torch.zeros_like(value)
    if rank.rank == 0:
        dist.send(value, 1)
        dist.recv(got, 1)
    else:
        dist.recv(got, 0)
        dist.send(value, 0)
    return _list(got)


@case(
    "collectives/send-and-receive",
    spec="What one rank sends another receives.",
    capability=COLLECTIVES,
)
def test_send_and_receive(world):
    each_has(world(2, _send), [payload(1), payload(0)], "sent values")


def _ring(rank, rounds=1):
    import torch
    import torch.distributed as dist

    value = _tensor(rank, payload(rank.rank))
    for _ in range(rounds):
        got = torch.zeros_like(value)
        work = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, value, (rank.rank + 1) % rank.world),
                dist.P2POp(dist.irecv, got, (rank.rank - 1) % rank.world),
            ]
        )
        for each in work:
            each.wait()
        value = got
    return _list(value)


@case(
    "collectives/ring",
    spec="In a ring of batched sends and receives every rank gets its neighbour's tensor.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_ring(world, n):
    each_has(world(n, _ring), [payload((rank - 1) % n) for rank in range(n)], "the neighbour's")


@case(
    "collectives/ring-many-rounds",
    spec="After as many rounds as ranks, a hundred times over, everyone has his own tensor again.",
    capability=COLLECTIVES,
)
def test_ring_many_rounds(world):
    each_has(world(2, _ring, rounds=200), [payload(0), payload(1)], "after 200 rounds")


def _interleaved(rank):
    import torch
    import torch.distributed as dist

    other = 1 - rank.rank
    sent = [_tensor(rank, [100.0 * rank.rank + each]) for each in range(20)]
    got = [torch.zeros(1, device=rank.gpu.device) for _ in range(20)]
    ops = []
    for mine, theirs in zip(sent, got, strict=True):
        ops.append(dist.P2POp(dist.isend, mine, other))
        ops.append(dist.P2POp(dist.irecv, theirs, other))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return _list(torch.cat(got))


@case(
    "collectives/messages-keep-order",
    spec="Twenty messages in both directions at once arrive in the order they were sent.",
    capability=COLLECTIVES,
)
def test_messages_keep_order(world):
    expected = [[100.0 * (1 - rank) + each for each in range(20)] for rank in range(2)]
    each_has(world(2, _interleaved), expected, "twenty messages")


def _to_itself(rank):
    import torch
    import torch.distributed as dist

    def call():
        dist.send(torch.zeros(1, device=rank.gpu.device), rank.rank)
        return "accepted"

    return _or_refused(call)


@case(
    "collectives/send-to-itself",
    spec="Sending to one's own rank is refused with an error.",
    capability=COLLECTIVES,
    outcome="unsupported",
)
def test_send_to_itself(world):
    for rank, found in enumerate(world(2, _to_itself)):
        assert found.startswith(REFUSED), f"rank {rank} sent to itself"


def _from_anyone(rank):
    import torch
    import torch.distributed as dist

    value = _tensor(rank, [float(rank.rank)])
    if rank.rank:
        return _or_refused(lambda: dist.send(value, 0)) or "sent"
    found = []
    for _ in range(rank.world - 1):
        got = torch.zeros(1, device=rank.gpu.device)
        source = _or_refused(lambda got=got: dist.recv(got))
        if isinstance(source, str):
            for other in range(1, rank.world):
                dist.recv(got, other)
            return source
        found.append([source, float(got)])
    return sorted(found)


@case(
    "collectives/receive-from-anyone",
    spec="A receive without a source names the rank that sent what it got, or is refused.",
    capability=COLLECTIVES,
)
def test_receive_from_anyone(world):
    found = world(3, _from_anyone)[0]
    if not isinstance(found, str):
        assert found == [[1, 1.0], [2, 2.0]], f"rank 0 got {found} as source and value"


# --- barriers and asynchronous work


def _barrier(rank):
    import time

    import torch.distributed as dist

    dist.barrier()
    if rank.rank == 1:
        time.sleep(0.15)
    before = time.monotonic()
    dist.barrier()
    return [before, time.monotonic()]


@case(
    "collectives/barrier",
    spec="No rank leaves a barrier before the last one has come to it.",
    capability=COLLECTIVES,
    params={"n": SEVERAL},
)
def test_barrier(world, n):
    times = world(n, _barrier)
    last = max(before for before, _ in times)
    for rank, (_, after) in enumerate(times):
        early_ms = (last - after) * 1e3
        assert early_ms <= 0, f"rank {rank} left the barrier {early_ms:.1f} ms before the last came"


def _asynchronous(rank, count):
    import torch.distributed as dist

    values = [_tensor(rank, payload(rank.rank + shift)) for shift in range(count)]
    work = [dist.all_reduce(value, async_op=True) for value in values]
    for each in work:
        each.wait()
    rank.gpu.synchronize()
    return [[_list(value) for value in values], all(each.is_completed() for each in work)]


@case(
    "collectives/asynchronous",
    spec="After wait() the result of an asynchronous collective is there, for many at a time.",
    capability=COLLECTIVES,
    params={"count": (1, 16)},
    smoke=True,
)
def test_asynchronous(world, count):
    sums = [
        [a + b for a, b in zip(payload(shift), payload(shift + 1), strict=True)]
        for shift in range(count)
    ]
    each_has(world(2, _asynchronous, count=count), [[sums, True]] * 2, "asynchronous sums")


def _early(rank, size):
    import time

    import torch
    import torch.distributed as dist

    value = torch.full((size,), 1.0, device=rank.gpu.device)
    if rank.rank == 1:
        time.sleep(0.1)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    return [float(value[0]), float(value[-1]), float(value.min()), float(value.max())]


@case(
    "collectives/wait-waits",
    spec="wait() does not return before a rank that comes late has taken part.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_wait_waits(world):
    each_has(world(2, _early, size=1 << 20), [[2.0] * 4] * 2, "a sum after wait()")


def _freed(rank):
    import gc

    import torch
    import torch.distributed as dist

    whole = torch.zeros(rank.world * 1000, device=rank.gpu.device)
    mine = torch.full((1000,), rank.rank + 1.0, device=rank.gpu.device)
    work = dist.all_gather_into_tensor(whole, mine, async_op=True)
    del mine
    gc.collect()
    junk = [torch.full((1000,), 99.0, device=rank.gpu.device) for _ in range(10)]
    work.wait()
    return [float(whole[:1000].min()), float(whole[-1000:].max()), len(junk)]


@case(
    "collectives/input-freed-early",
    spec="The input of an asynchronous collective may be given up before it is done.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_input_freed_early(world):
    each_has(world(2, _freed), [[1.0, 2.0, 10]] * 2, "a gather whose input is gone")


def _then_computes(rank):
    import torch.distributed as dist

    value = _tensor(rank, payload(rank.rank))
    for _ in range(5):
        value = value * 2
        dist.all_reduce(value)
        value = value / 2
    return _list(value)


@case(
    "collectives/work-around-collectives",
    spec="Collectives and the work before and after them keep their order.",
    capability=COLLECTIVES,
)
def test_work_around_collectives(world):
    # the first sum is the total; each of the four others doubles it
    expected = [16.0 * value for value in total(2)]
    each_has(world(2, _then_computes), [expected] * 2, "five sums with work between them")


# --- groups


def _subgroup(rank):
    import torch.distributed as dist

    group = dist.new_group([0, 2])
    value = _tensor(rank, payload(rank.rank))
    if rank.rank in (0, 2):
        dist.all_reduce(value, group=group)
    return _list(value)


@case(
    "collectives/subgroup",
    spec="A sum within a group takes in its members and leaves the others alone.",
    capability=COLLECTIVES,
)
def test_subgroup(world):
    both = [a + b for a, b in zip(payload(0), payload(2), strict=True)]
    expected = [both, payload(1), both, payload(3)]
    each_has(world(4, _subgroup), expected, "a sum within ranks 0 and 2")


def _not_a_member(rank):
    import warnings

    import torch.distributed as dist

    group = dist.new_group([0])
    value = _tensor(rank, payload(rank.rank))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_reduce(value, group=group)
    return [_list(value), bool(caught)]


@case(
    "collectives/not-a-member",
    spec="A call by a rank outside of the group changes nothing and warns.",
    capability=COLLECTIVES,
)
def test_not_a_member(world):
    expected = [[payload(0), False], [payload(1), True]]
    each_has(world(2, _not_a_member), expected, "a sum within rank 0 alone")


def _overlapping(rank):
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    value = _tensor(rank, [float(rank.rank + 1)])
    for group, members in zip(groups, ((0, 1), (1, 2)), strict=True):
        if rank.rank in members:
            dist.all_reduce(value, group=group)
    return _list(value)


@case(
    "collectives/overlapping-groups",
    spec="Groups that share a rank work one after the other.",
    capability=COLLECTIVES,
)
def test_overlapping_groups(world):
    # 1 + 2 = 3 on ranks 0 and 1, then 3 + 3 = 6 on ranks 1 and 2
    each_has(world(3, _overlapping), [[3.0], [6.0], [6.0]], "sums in two groups")


def _both_groups(rank):
    import torch.distributed as dist

    everyone = [dist.new_group(list(range(rank.world))) for _ in range(2)]
    values = [_tensor(rank, [rank.rank + shift]) for shift in (1.0, 10.0)]
    work = [
        dist.all_reduce(value, group=group, async_op=True)
        for value, group in zip(values, everyone, strict=True)
    ]
    for each in reversed(work):
        each.wait()
    return [_list(value) for value in values]


@case(
    "collectives/concurrent-groups",
    spec="Two groups of the same ranks do not mix up collectives that run at the same time.",
    capability=COLLECTIVES,
)
def test_concurrent_groups(world):
    each_has(world(2, _both_groups), [[[3.0], [21.0]]] * 2, "sums in two groups at once")


def _group_root(rank):
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    value = _tensor(rank, payload(rank.rank))
    place = dist.get_group_rank(group, rank.rank) if rank.rank else -1
    if rank.rank:
        dist.broadcast(value, src=2, group=group)
    return [place, _list(value)]


@case(
    "collectives/root-is-global",
    spec="The root of a collective in a group is named by its rank in the world.",
    capability=COLLECTIVES,
)
def test_root_is_global(world):
    expected = [[-1, payload(0)], [0, payload(2)], [1, payload(2)]]
    each_has(world(3, _group_root), expected, "a broadcast from rank 2 in the group of 1 and 2")


def _mesh(rank):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(rank.gpu.device.type, (2, 2), mesh_dim_names=("outer", "inner"))
    found = []
    for name in ("outer", "inner"):
        value = _tensor(rank, [float(rank.rank)])
        dist.all_reduce(value, group=mesh.get_group(name))
        found.append(float(value))
    return [mesh.get_coordinate(), found]


@case(
    "collectives/device-mesh",
    spec="A mesh of two by two ranks sums along each of its dimensions.",
    capability=COLLECTIVES,
)
def test_device_mesh(world):
    # ranks 0 1 / 2 3: outer sums a column, inner sums a row
    expected = [
        [[0, 0], [2.0, 1.0]],
        [[0, 1], [4.0, 1.0]],
        [[1, 0], [2.0, 5.0]],
        [[1, 1], [4.0, 5.0]],
    ]
    found = [[list(place), sums] for place, sums in world(4, _mesh)]
    each_has(found, expected, "a mesh of two by two")


def _again(rank, folder):
    import torch.distributed as dist

    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/again", rank.world)
    dist.init_process_group(
        rank.gpu.comm.init_string, store=store, rank=rank.rank, world_size=rank.world
    )
    value = _tensor(rank, payload(rank.rank))
    dist.all_reduce(value)
    return _list(value)


@case(
    "collectives/initialised-again",
    spec="After destroy_process_group() a world can be initialised again and works.",
    capability=COLLECTIVES,
)
def test_initialised_again(world, tmp_path):
    found = world(2, _again, folder=str(tmp_path))
    each_has(found, [total(2)] * 2, "a sum after a second initialisation")


# --- training over ranks


def _ddp(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.rank)
    model = torch.nn.Linear(4, 1, bias=False).to(rank.gpu.device)
    ids = rank.gpu.comm.device_ids
    wrapped = DistributedDataParallel(model, device_ids=None if ids is None else list(ids))
    found = {"start": _list(model.weight.detach().reshape(-1))}
    mine = _tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])

    def gradient():
        wrapped(mine).sum().backward()
        return _list(model.weight.grad.reshape(-1))

    found["average"] = gradient()
    wrapped.zero_grad()
    with wrapped.no_sync():
        found["held"] = gradient()
    found["both"] = gradient()
    return found


@case(
    "collectives/ddp-averages-gradients",
    spec="DistributedDataParallel gives every rank the average of the ranks' gradients.",
    capability=COLLECTIVES,
    covers=("Comm.device_ids",),
    traps=("C08",),
    params={"n": (2,)},
)
def test_ddp_averages_gradients(world, n):
    expected = [value / n for value in total(n, 4)]
    found = [each["average"] for each in world(n, _ddp)]
    each_has(found, [expected] * n, "the averaged gradient")


@case(
    "collectives/ddp-starts-from-rank-0",
    spec="DistributedDataParallel gives every rank the weights of rank 0.",
    capability=COLLECTIVES,
)
def test_ddp_starts_from_rank_0(world):
    first, second = [each["start"] for each in world(2, _ddp)]
    assert first == second, f"rank 1 starts from {second}, rank 0 from {first}"


@case(
    "collectives/ddp-accumulates",
    spec="Inside no_sync() gradients stay the rank's own, and the next step averages their sum.",
    capability=COLLECTIVES,
)
def test_ddp_accumulates(world):
    for rank, found in enumerate(world(2, _ddp)):
        held, both = found["held"], found["both"]
        assert held == payload(rank, 4), f"rank {rank}: inside no_sync() the gradient is {held}"
        assert both == [float(value) for value in total(2, 4)], f"rank {rank}: the sum is {both}"


def _fsdp(rank):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False).to(rank.gpu.device)
    whole = _list(model.weight.detach().reshape(-1))
    fully_shard(model)
    mine = _tensor(rank, [[float(value) for value in payload(rank.rank, 4)]])
    result = model(mine)
    result.sum().backward()
    gradient = model.weight.grad.full_tensor()
    dist.barrier()
    return [whole, _list(result.detach().reshape(-1)), _list(gradient)]


@case(
    "collectives/fsdp2-averages-gradients",
    spec="A layer sharded by fully_shard gives the average of the ranks' gradients.",
    capability=COLLECTIVES,
    traps=("C08",),
)
def test_fsdp2_averages_gradients(world):
    row = [value / 2 for value in total(2, 4)]
    found = [gradient for _, _, gradient in world(2, _fsdp)]
    each_has(found, [[row] * 4] * 2, "the gradient of a sharded layer")
