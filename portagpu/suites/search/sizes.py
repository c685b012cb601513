"""Sizes at which kernels and index types change, on both sides: few operands, exact and cheap.

Kernels have tiles, grids and blocks of powers of two, a grid of CUDA and HIP ends at 65,535 blocks
in two of its dimensions (CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"), and an index of 32 bits at 2^31. A program is one operation, one dtype and one size.
Values make every result exact in any order: ones with alternating signs, elements at a few places
and zeros elsewhere, or whole numbers that are moved. So nothing is bounded, and the model is a
formula of indices in whole numbers on the host.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision import Support
from portagpu.suites.search.area import Area, one_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from hypothesis.strategies import SearchStrategy

    from portagpu.devices.contract import Backend
    from portagpu.runs.world import Rank
    from portagpu.suites.search.area import Program, Runners

THRESHOLDS: Final = (2**10, 2**12, 2**15, 2**16 - 1, 2**16, 2**17, 2**19, 2**20, 2**22)
SIZES: Final = tuple(sorted({n + more for n in THRESHOLDS for more in (0, 1)}))
MODERATE: Final = tuple(n for n in SIZES if 2**12 < n <= 2**17)
"""Of which a program takes milliseconds."""
PAST_INDEX: Final = 2**31 + 8
"""Elements of a byte each, for which an index of 32 bits is too short."""
PAST_DRAWS: Final = 2**24 + 2**12 + 1
"""Random numbers, more than a counter in float32 counts."""
_PRODUCTS: Final = 2**20 + 1
_BATCHES: Final = 2**17 + 1
"""Above these, products take long on a CPU."""
FLOATS: Final = ("float32", "bfloat16", "float16")
DTYPES: Final = (*FLOATS, "int32", "uint8", "int64")
PERIOD: Final = 127
"""A prime: no power of two of elements repeats the same numbers, which every dtype has."""


def _ramp(n: int, dtype: str) -> torch.Tensor:
    """Whole numbers from 0 to ``PERIOD`` - 1 by turns, on the host."""
    import torch

    return (torch.arange(n) % PERIOD).to(getattr(torch, dtype))


def _hot(n: int) -> list[int]:
    """The first, the last and some places between."""
    return sorted({0, n // 3, n // 2, max(0, n - 9), n - 1})


def _few(n: int, dtype: str) -> torch.Tensor:
    """Zeros with ones at :func:`_hot`, on the host."""
    import torch

    found = torch.zeros(n, dtype=getattr(torch, dtype))
    found[_hot(n)] = 1
    return found


def _signs(n: int, dtype: str) -> torch.Tensor:
    """1 and -1 by turns; where sums of them may be rounded, few of them."""
    import torch

    if dtype in ("float16", "bfloat16", "uint8"):
        return _few(n, dtype)
    return (1 - 2 * (torch.arange(n) % 2)).to(getattr(torch, dtype))


Outcome = tuple[Any, Any]
"""What the device gave, and what is right, as a tensor of whole numbers on the host."""


def _rows(put: Any, n: int, dtype: str) -> Outcome:
    """A tall matrix by one that turns its columns around."""
    import torch

    x = _ramp(4 * n, dtype).view(n, 4)
    turn = torch.eye(4, dtype=x.dtype).flip(0)
    return put(x) @ put(turn), x.flip(1)


def _columns(put: Any, n: int, dtype: str) -> Outcome:
    import torch

    x = _ramp(4 * n, dtype).view(4, n)
    return put(torch.eye(4, dtype=x.dtype).flip(0)) @ put(x), x.flip(0)


def _plus_product(put: Any, n: int, dtype: str) -> Outcome:
    """Twice a matrix and half a product, whose second operand lies column by column."""
    import torch

    c, x = _ramp(4 * n, dtype).view(4, n) % 16, 2 * (_ramp(4 * n, dtype).view(n, 4) % 8)
    turn = torch.eye(4, dtype=x.dtype).flip(0)
    found = torch.addmm(put(c), put(turn), put(x).t(), beta=2, alpha=0.5)
    return found, 2 * c + x.t().flip(0) / 2


def _inner(put: Any, n: int, dtype: str) -> Outcome:
    """Two rows by three columns, of which the second and the last are few ones, also transposed."""
    import torch

    x = torch.stack([_signs(n, dtype), _few(n, dtype)])
    y = torch.stack([_few(n, dtype), _few(n, dtype).flip(0), _signs(n, dtype)], dim=1)
    turned = put(x.t().contiguous()).t() @ put(y.t().contiguous()).t()
    return torch.stack([put(x) @ put(y), turned]), (x.double() @ y.double()).expand(2, 2, 3)


def _linear(put: Any, n: int, dtype: str) -> Outcome:
    """The weight's gradient of a layer, whose inner size is the number of rows."""
    import torch

    x, grad = _few(n, dtype).view(n, 1), torch.stack([_signs(n, dtype), _few(n, dtype)], dim=1)
    weight = put(torch.ones(2, 1, dtype=x.dtype)).requires_grad_()
    torch.nn.functional.linear(put(x), weight).backward(put(grad))
    return weight.grad, grad.double().t() @ x.double()


def _batch(put: Any, n: int, dtype: str) -> Outcome:
    import torch

    x = _ramp(4 * n, dtype).view(n, 2, 2)
    turn = torch.eye(2, dtype=x.dtype).flip(0).expand(n, 2, 2)
    return torch.bmm(put(x), put(turn)), x.flip(2)


def _rows_of_batch(put: Any, n: int, dtype: str) -> Outcome:
    """One row by a matrix of 64 columns, three times: what decoding does."""
    import torch

    y = (_ramp(3 * 64 * n, dtype) % 8).view(3, n, 64)
    found = torch.bmm(put(_few(n, dtype).expand(3, 1, n)), put(y))
    return found, y.long()[:, _hot(n)].sum(1, keepdim=True)


def _bytes_product(put: Any, n: int, dtype: str, most: int = 128) -> Outcome:
    """A product of int8 with all bits, whose sums have more bits than float32 has.

    The second operand is at most ``most``: 64 where pairs of products are added in 16 bits.
    """
    import torch

    del dtype
    # libraries of GPUs take multiples of 8 alone
    n = n if put(torch.ones(1)).device.type == "cpu" else -(-n // 8) * 8
    x = (torch.arange(32 * n) * 37 % 256 - 128).to(torch.int8).view(32, n)
    x[:2] = 127
    y = x.t().clamp(-most, min(most, 127)).contiguous()
    return torch._int_mm(put(x), put(y)), x.double() @ y.double()  # sums below 2^53 are exact


def _sum(dim: int | None) -> Callable[..., Outcome]:
    """A sum of all, or over the long or the short dimension."""

    def run(put: Any, n: int, dtype: str) -> Outcome:
        x = _signs(n, dtype)
        x[_hot(n)] = 1
        if dim is None:
            return put(x).sum(), x.long().sum()
        x = x.expand(2, n).contiguous() if dim == 1 else x.view(n, 1).expand(n, 2).contiguous()
        return put(x).sum(dim), x.long().sum(dim)

    return run


def _wide_sum(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(2 * n, dtype).view(2, n) % 60
    return put(x).sum(0), x.long().sum(0)


def _running(put: Any, n: int, dtype: str) -> Outcome:
    x = _few(n, dtype)
    return put(x).cumsum(0), x.long().cumsum(0)


def _place(put: Any, n: int, dtype: str) -> Outcome:
    """Where the largest number is: at the end, but for one."""
    import torch

    x = torch.zeros(2, n, dtype=getattr(torch, dtype))
    x[0, n - 1], x[1, max(0, n - 2)] = 2, 2
    return put(x).argmax(1), torch.tensor([n - 1, max(0, n - 2)])


def _sorted_columns(put: Any, n: int, dtype: str) -> Outcome:
    """Two rows in the wrong order: the places of a sort of each column."""
    import torch

    x = torch.tensor([[2], [1]], dtype=getattr(torch, dtype)).expand(2, n).contiguous()
    return put(x).argsort(0), torch.tensor([[1], [0]]).expand(2, n)


def _sorted_row(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(n, dtype)
    return put(x.flip(0)).sort().values, x.long().sort().values


def _not_numbers(put: Any, n: int, dtype: str) -> Outcome:
    """NaN of both signs are after all numbers, and the median of a row that has most of them."""
    import torch

    x = _ramp(n, dtype)
    x[:4], x[n // 2 : n // 2 + 4] = -torch.nan, torch.nan
    most = torch.stack([x.flip(0), x])
    most[:, n // 4 :] = torch.nan
    found = [put(x).sort().values.isnan(), put(most).median(1).values.isnan()]
    return torch.cat(found), torch.cat([torch.arange(n) >= n - 8, torch.ones(2).bool()])


def _largest(put: Any, n: int, dtype: str) -> Outcome:
    """More of the largest than the 16 and 32 that some kernels keep."""
    import torch

    x = _ramp(n, dtype)
    return put(x).topk(40).values, torch.tensor(_top(n, 40))


def _top(n: int, count: int) -> list[int]:
    """The largest ``count`` numbers of a ramp, from the largest on."""
    found: list[int] = []
    for value in range(PERIOD - 1, -1, -1):
        found += [value] * (n // PERIOD + (value < n % PERIOD))
        if len(found) >= count:
            break
    return found[:count]


def _ends(put: Any, n: int, dtype: str) -> Outcome:
    """The largest and the smallest of all and their places, near each end: one kernel of blocks."""
    import torch

    x = torch.ones(n, dtype=getattr(torch, dtype))
    x[n - 2], x[1] = 2, 0
    found = []
    for each in (put(x), put(x.flip(0))):
        found += [each.max(), each.min(), each.argmax(), each.argmin(), each.amax(), each.amin()]
    right = (2, 0, n - 2, 1, 2, 0, 2, 0, 1, n - 2, 2, 0)
    return torch.stack([each.cpu().double() for each in found]), torch.tensor(right)


def _softmax(put: Any, n: int, dtype: str) -> Outcome:
    """One number so large that all others have no weight that the dtype has: each is exact."""
    import torch

    x = torch.zeros(2, n, dtype=getattr(torch, dtype))
    right = torch.zeros(2, 2, n, dtype=torch.long)
    x[0, n - 1], x[1, n // 2] = 512, 512
    right[0] = right[1] = x.long() // 512
    right[1] = (right[1] - 1) * 512
    return torch.stack([put(x).softmax(1), put(x).log_softmax(1)]), right


def _distinct(put: Any, n: int, dtype: str) -> Outcome:
    import torch

    return put(_ramp(n, dtype)).unique(), torch.arange(min(n, PERIOD))


def _places(put: Any, n: int, dtype: str) -> Outcome:
    """Where numbers are, the last one among them, and how many a mask picks."""
    import torch

    x = put(_few(n, dtype))
    found = [x.nonzero().flatten(), torch.arange(n).to(x.device)[x > 0]]
    return torch.stack(found), torch.tensor([_hot(n)] * 2)


def _count(put: Any, n: int, dtype: str) -> Outcome:
    """Running counts of booleans, which are 64-bit numbers."""
    import torch

    x = torch.ones(n, dtype=getattr(torch, dtype))
    return put(x).cumsum(0), torch.arange(1, n + 1)


def _drawn(put: Any, n: int, dtype: str) -> Outcome:
    """Whether random numbers repeat: how many of the last 1,024 stand at a power of two before it.

    Of numbers of 24 bits fewer than 4 are equal by chance, but for once in 10^15 calls. A normal
    number is not beyond 9, but for once in 10^18.
    """
    import torch

    found = []
    for draw in (torch.Tensor.uniform_, torch.Tensor.normal_):
        x = draw(put(torch.empty(n, dtype=getattr(torch, dtype))))
        before = [x[n - 1024 - 2**k : n - 2**k] for k in range(7, n.bit_length())]
        same = [(each == x[-1024:]).sum() >= 4 for each in before if len(each) == 1024]
        found += [torch.stack(same).any() if same else x.isnan().any(), (~(x.abs() <= 9)).any()]
    return torch.stack(found), torch.zeros(4)


def _plus_one(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(n, dtype)
    return put(x) + 1, x.long() + 1


def _doubled(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(n, dtype)
    return put(x) * 2, x.long() * 2


def _turned(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(3 * n, dtype).view(n, 3)
    return put(x).t().contiguous(), x.t()


def _joined(put: Any, n: int, dtype: str) -> Outcome:
    import torch

    x = _ramp(n, dtype)
    return torch.cat([put(x), put(x.flip(0))]), torch.cat([x, x.flip(0)])


def _picked(put: Any, n: int, dtype: str) -> Outcome:
    x = _ramp(n, dtype)
    index = _few(n, "int64").cumsum(0).flip(0) * (n // 8)
    return put(x).index_select(0, put(index)), x[index]


def _added(put: Any, n: int, dtype: str) -> Outcome:
    """Each number to its own place, from the end on."""
    import torch

    x = _ramp(n, dtype)
    index = torch.arange(n).flip(0)
    return put(torch.zeros_like(x)).index_add(0, put(index), put(x)), x.flip(0)


def _copied(put: Any, n: int, dtype: str) -> Outcome:
    """As many bytes, of one that is spread: its last elements, for all take long to compare."""
    import torch

    one = put(torch.ones(1, dtype=getattr(torch, dtype))).expand(n)
    return one.clone(memory_format=torch.contiguous_format)[-9:], torch.ones(min(9, n))


OPS: Final[dict[str, tuple[Callable[..., Outcome], tuple[str, ...], int]]] = {
    # what runs it, in which dtypes, and up to which size
    "rows of a product": (_rows, FLOATS, _PRODUCTS),
    "columns of a product": (_columns, FLOATS, _PRODUCTS),
    "columns of a sum with a product": (_plus_product, FLOATS, 2**17 + 1),
    "inner size of a product": (_inner, FLOATS, _PRODUCTS),
    "rows of a layer": (_linear, FLOATS, _PRODUCTS),
    "batch of products": (_batch, FLOATS, _BATCHES),
    "rows of a batch": (_rows_of_batch, FLOATS, 2**12 + 1),
    "inner size of a product of bytes": (_bytes_product, ("int8",), 2**15 + 1),
    "sum": (_sum(None), DTYPES, SIZES[-1]),
    "sum of rows": (_sum(1), DTYPES, SIZES[-1]),
    "sum of columns": (_sum(0), DTYPES, SIZES[-1]),
    "sum of two rows": (_wide_sum, DTYPES, SIZES[-1]),
    "running sum": (_running, DTYPES, SIZES[-1]),
    "argmax": (_place, DTYPES, SIZES[-1]),
    "sort of columns": (_sorted_columns, DTYPES, SIZES[-1]),
    "sort": (_sorted_row, DTYPES, 2**20 + 1),
    "NaN": (_not_numbers, FLOATS, 2**15 + 1),
    "topk": (_largest, DTYPES, 2**20 + 1),
    "ends": (_ends, DTYPES, 2**20 + 1),
    "softmax": (_softmax, FLOATS, 2**17 + 1),
    "unique": (_distinct, DTYPES, 2**19 + 1),
    "nonzero": (_places, DTYPES, 2**20 + 1),
    "count": (_count, ("bool",), 2**20 + 1),
    "draws": (_drawn, ("float32",), PAST_DRAWS),
    "add": (_plus_one, DTYPES, SIZES[-1]),
    "mul": (_doubled, DTYPES, SIZES[-1]),
    "transposed copy": (_turned, DTYPES, SIZES[-1]),
    "cat": (_joined, DTYPES, SIZES[-1]),
    "index_select": (_picked, DTYPES, SIZES[-1]),
    "index_add": (_added, DTYPES, 2**20 + 1),
    "copy": (_copied, ("uint8",), PAST_INDEX),
}


def size_difference(gpu: Backend, op: str, dtype: str, n: int) -> str:
    """The first difference of one operation of that size, as a clause.

    What needs more memory than is free is not run.
    """
    import torch

    if n >= PAST_INDEX and gpu.mem_get_info()[0] < 2 * n:
        return ""
    run = OPS[op][0]
    if dtype == "int8" and torch.int8 in gpu.precision.saturates:
        run = partial(_bytes_product, most=64)
    with one_thread() if n <= MODERATE[-1] else nullcontext():
        found, right = run(lambda x: x.to(gpu.device), n, dtype)
    got = found.detach().cpu()
    if got.shape != right.shape:
        return f"{op} of {n} {dtype} gave the shape {list(got.shape)}, not {list(right.shape)}"
    # whole numbers, which every dtype here rounds to itself
    wrong = got.double() != right.double()
    if not bool(wrong.any()):
        return ""
    place = int(wrong.flatten().to(torch.uint8).argmax())
    one, other = got.flatten()[place].item(), int(right.flatten()[place])
    count = int(wrong.sum())
    return (
        f"{op} of {n} {dtype} gave {one:g} at element {place} of {got.numel()}, not {other} "
        f"({count} are wrong)"
    )


class _Sizes(Area):
    name = "sizes"

    def programs(self, gpu: Backend) -> SearchStrategy[Program]:
        raise NotImplementedError("the programs of sizes are listed")

    def listed(self, gpu: Backend) -> list[Program]:
        """Every operation in each of its dtypes and sizes."""
        import torch

        computes = (Support.NATIVE, Support.EMULATED)
        return [
            [("size", {"op": op, "dtype": dtype, "n": n})]
            for op, (_, dtypes, most) in OPS.items()
            for dtype in dtypes
            if gpu.precision.support(getattr(torch, dtype)) in computes
            for n in (*SIZES, PAST_DRAWS, PAST_INDEX)
            if n <= most and (n in SIZES or n == most)
        ]

    def ordered(self, listed: list[Program], seed: int) -> list[Program]:
        """Each operation in turn: its largest size in float32, as most thresholds are below it, one
        of moderate size in each other dtype, and then the sizes that it did not have yet."""
        chance = random.Random(seed)  # noqa: S311 - an order, no secret
        left: dict[str, list[Program]] = {}
        for program in chance.sample(listed, len(listed)):
            left.setdefault(program[0][1]["op"], []).append(program)
        # the one that takes seconds comes after what takes milliseconds
        order = sorted(chance.sample(sorted(left), len(left)), key=lambda op: OPS[op][2])
        first = [max(left[op], key=_most) for op in order]
        had = {(each[0][1]["op"], each[0][1]["dtype"]) for each in first}
        for op in order:
            for program in left[op]:
                call = program[0][1]
                if (op, call["dtype"]) not in had and call["n"] in MODERATE:
                    had.add((op, call["dtype"]))
                    first.append(program)
        found = first
        sizes: dict[str, set[int]] = {op: set() for op in order}
        for [(_, call)] in first:
            sizes[call["op"]].add(call["n"])
        rest = {op: [each for each in left[op] if each not in first] for op in order}
        while any(rest.values()):
            for op in filter(rest.get, order):
                new = [each for each in rest[op] if each[0][1]["n"] not in sizes[op]]
                best = (new or rest[op])[0]
                rest[op].remove(best)
                sizes[op].add(best[0][1]["n"])
                found.append(best)
        return found

    def first_pass(self, listed: list[Program]) -> int:
        """Every operation at its largest size, and in every dtype."""
        calls = [given for [(_, given)] in listed]
        ops = {given["op"] for given in calls}
        others = {(each["op"], each["dtype"]) for each in calls if each["n"] in MODERATE}
        return len(ops) + len(others - {(op, _first_dtype(op)) for op in ops})

    def calls(self) -> Runners:
        return {"size": size_difference}

    def difference(self, rank: Rank, program: Program) -> str:
        rank.gpu.set_float32_precision("ieee")
        return next(filter(None, (size_difference(rank.gpu, **given) for _, given in program)), "")


def _first_dtype(op: str) -> str:
    """The dtype of an operation's largest size."""
    return "float32" if "float32" in OPS[op][1] else OPS[op][1][0]


def _most(program: Program) -> tuple[bool, int]:
    given = program[0][1]
    return given["dtype"] == _first_dtype(given["op"]), given["n"]


AREA: Final = _Sizes()
"""Operations on both sides of the sizes at which kernels change."""
