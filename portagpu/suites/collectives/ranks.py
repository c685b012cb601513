"""What every rank runs for :mod:`portagpu.suites.collectives.verify`. Needs torch.

torch has ``all_reduce``, ``broadcast`` and ``reduce`` in place alone. An ``all_to_all`` or
``sendrecv`` in place has no defined result: nccl-tests does not check it either.

Any rank computes what every other one sends, from the rank's number. Three kinds of values:

- "bits", for operations that only move data: every pattern of bits, NaN among them;
- "exact", for reductions: values whose result is the same in every order and grouping. Integers use
  their whole range and wrap. Floats are whole numbers whose sums stay within the significand,
  signed powers of two for a product, and multiples of the number of ranks for an average;
- "random", for sums and averages of floats: normal numbers. The result of any order is within
  ``k * u / (1 - k * u) * sum(abs(x))`` of the sum in float64, with the unit roundoff u and k
  additions: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2.
  An average has two roundings more.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.base.text import one_line
from portagpu.devices.collectives.helpers import all_gather_single, reduce_scatter_single
from portagpu.facts.nccl_tests.model import SHARED_OUT
from portagpu.facts.nccl_tests.tables import REDUCTIONS
from portagpu.suites.performance.timing import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.world import Rank


ROOT: Final = 0
_BOTH: Final = ("out_of_place", "in_place")
PLACES: Final = {
    "all_reduce": _BOTH[1:],
    "broadcast": _BOTH[1:],
    "reduce": _BOTH[1:],
    "all_gather": _BOTH,
    "reduce_scatter": _BOTH,
    "gather": _BOTH,
    "scatter": _BOTH,
    "all_to_all": _BOTH[:1],
    "sendrecv": _BOTH[:1],
}
"""Where each operation can put its result; the names are those of ``perf_tables``."""

_TORCH_OPS: Final = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG"}
_POISON: Final = 0xA5
REDOPS: Final = ("sum", "prod", "max", "min", "avg")
"""As nccl-tests names them."""
_SCALED_RANKS: Final = 4
"""How many ranks multiply by other numbers than 1 and -1, so that no product overflows."""
_REFUSALS: Final = (RuntimeError, ValueError, TypeError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The buffers of one rank. In place, one is a part of the other, or both are the same."""

    operation: str
    redop: str
    rank: int
    world: int
    count: int
    """As ``portagpu.facts.nccl_tests.model.total_bytes`` takes it."""
    sent: torch.Tensor
    received: torch.Tensor

    @classmethod
    def make(
        cls,
        operation: str,
        redop: str,
        place: str,
        count: int,
        dtype: torch.dtype,
        device: torch.device,
        rank: int,
        world: int,
    ) -> Exchange:
        """Buffers that are not filled yet."""

        def empty(shares: int) -> torch.Tensor:
            # not every dtype can be filled where every device has memory for it
            size = (shares * count * dtype.itemsize,)
            return torch.empty(size, dtype=torch.uint8, device=device).view(dtype)

        whole = world if operation in SHARED_OUT else 1
        sends_whole = operation in ("reduce_scatter", "all_to_all", "scatter")
        receives_whole = operation in ("all_gather", "all_to_all", "gather")
        sent = empty(whole if sends_whole else 1)
        received = empty(whole if receives_whole else 1)
        own = slice(rank * count, (rank + 1) * count)
        at_root = operation not in ("gather", "scatter") or rank == ROOT
        if place == "in_place" and at_root:
            if receives_whole:
                sent = received[own]
            elif sends_whole:
                received = sent[own]
            else:
                received = sent
        return cls(operation, redop, rank, world, count, sent, received)

    def fill(self, values: torch.Tensor) -> None:
        """Put ``values`` into what this rank sends, and nonsense where it receives."""
        for each in (self.received, self.sent):
            each.view(torch.uint8).fill_(_POISON)
        if self.sends:
            self.sent.view(torch.uint8).copy_(values.view(torch.uint8))

    def clear(self) -> None:
        """Zeros, which stay zeros however often they are reduced: for timing."""
        for each in (self.received, self.sent):
            each.view(torch.uint8).zero_()

    @property
    def sends(self) -> bool:
        """Whether what this rank has goes anywhere."""
        return self.operation not in ("broadcast", "scatter") or self.rank == ROOT

    @property
    def receives(self) -> bool:
        """Whether what this rank holds afterwards is defined."""
        return self.operation not in ("reduce", "gather") or self.rank == ROOT

    def parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The share of each rank in ``whole``."""
        return [whole[at * self.count : (at + 1) * self.count] for at in range(self.world)]


def perform(exchange: Exchange) -> None:
    """One call of the collective; it raises what torch and the library raise."""
    sent, received, at_root = exchange.sent, exchange.received, exchange.rank == ROOT
    operation = exchange.operation
    reduction = getattr(dist.ReduceOp, _TORCH_OPS[exchange.redop]) if exchange.redop else None
    if operation == "all_reduce":
        dist.all_reduce(received, op=reduction)
    elif operation == "reduce":
        dist.reduce(received, dst=ROOT, op=reduction)
    elif operation == "reduce_scatter":
        reduce_scatter_single(received, sent, op=reduction)
    elif operation == "broadcast":
        dist.broadcast(received, src=ROOT)
    elif operation == "all_gather":
        all_gather_single(received, sent)
    elif operation == "all_to_all":
        dist.all_to_all_single(received, sent)
    elif operation == "gather":
        dist.gather(sent, exchange.parts(received) if at_root else None, dst=ROOT)
    elif operation == "scatter":
        dist.scatter(received, exchange.parts(sent) if at_root else None, src=ROOT)
    else:
        after, before = ((exchange.rank + step) % exchange.world for step in (1, -1))
        calls = [
            dist.P2POp(dist.isend, sent, after),
            dist.P2POp(dist.irecv, received, before),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()


@dataclass(frozen=True, slots=True)
class Inputs:
    """The values of one call: ``sent(r)`` is what rank r sends, of ``length`` elements."""

    dtype: torch.dtype
    world: int
    length: int
    redop: str
    """One of ``REDOPS``; empty for an operation that only moves data."""
    kind: str
    """ "bits", "exact" or "random"."""
    seed: int

    def sent(self, rank: int) -> torch.Tensor:
        """What ``rank`` sends, on the CPU."""
        random = torch.Generator().manual_seed(self.seed * 65537 + rank)
        if self.kind == "bits":
            shape = (self.length * self.dtype.itemsize,)
            return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random).view(
                self.dtype
            )
        if not self.dtype.is_floating_point:
            return self._whole(random)
        if self.kind == "random" or self.redop in ("max", "min"):
            found = torch.randn(self.length, dtype=torch.float64, generator=random).to(self.dtype)
            # a zero has two signs, and which is larger is not defined
            return torch.where(found.to(torch.float64) == 0, torch.ones_like(found), found)
        if self.redop == "prod":
            most = 1 if rank < _SCALED_RANKS else 0
            power = torch.randint(-most, most + 1, (self.length,), generator=random)
            sign = 1 - 2 * torch.randint(0, 2, (self.length,), generator=random)
            return (sign * 2.0 ** power.to(torch.float64)).to(self.dtype)
        most, step = _most_whole(self.dtype) // self.world, 1
        if self.redop == "avg":
            most, step = most // self.world, self.world
        found = torch.randint(-most, most + 1, (self.length,), generator=random) * step
        return found.to(torch.float64).to(self.dtype)

    def _whole(self, random: torch.Generator) -> torch.Tensor:
        info = torch.iinfo(self.dtype)
        low, high = max(info.min, -(1 << 62)), min(info.max, 1 << 62)
        found = torch.randint(low, high + 1, (self.length,), dtype=torch.int64, generator=random)
        return found.to(self.dtype)

    def reduced(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the values of all ranks reduce to, and how far a result may be from it.

        The bound is None where the result must have the same bits; otherwise both are float64.
        """
        wide = torch.float64 if self.dtype.is_floating_point else torch.int64
        total = self.sent(0).to(wide)
        sizes = total.abs()
        for rank in range(1, self.world):
            each = self.sent(rank).to(wide)
            sizes += each.abs()
            if self.redop == "prod":
                total *= each
            elif self.redop in ("max", "min"):
                total = (torch.maximum if self.redop == "max" else torch.minimum)(total, each)
            else:
                total += each
        if self.redop == "avg":
            total, sizes = total / self.world, sizes / self.world
        if self.kind == "exact":
            return total.to(self.dtype), None
        return total, self._bound(sizes)

    def _bound(self, sizes: torch.Tensor) -> torch.Tensor:
        info = torch.finfo(self.dtype)
        additions = self.world - 1 + (2 if self.redop == "avg" else 0)
        product = additions * info.eps / 2
        share = product / (1 - product) if product < 1 else math.inf
        # the sum in float64 is rounded as well
        own = self.world * torch.finfo(torch.float64).eps
        return (share + own) * sizes + info.smallest_normal * info.eps


def kinds(dtype: torch.dtype, redop: str, world: int) -> tuple[str, ...]:
    """The kinds of values to send in turn; empty where ``redop`` has no meaning for ``dtype``."""
    if not redop:
        return ("bits",)
    if not dtype.is_floating_point:
        # what an average of integers is rounded to is each library's own choice
        return () if redop == "avg" else ("exact",)
    if redop != "avg":
        return ("exact", "random") if redop == "sum" else ("exact",)
    # a factor of 1 / world is exact for powers of two alone
    exact = world & (world - 1) == 0 and _most_whole(dtype) // world**2 > 0
    return ("exact", "random") if exact else ("random",)


def _most_whole(dtype: torch.dtype) -> int:
    """Every whole number up to this one is a number of ``dtype``."""
    return int(2 / torch.finfo(dtype).eps)


def first_wrong(
    found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | None
) -> tuple[int, int, str, str]:
    """(how many elements are wrong, index of the first, its value, what it should be)."""
    if bound is None:
        bits = found.contiguous().view(torch.uint8) != expected.contiguous().view(torch.uint8)
        differs = bits.view(-1, found.dtype.itemsize).any(dim=1)
    else:
        # a NaN is within no bound
        differs = ~((found.to(torch.float64) - expected).abs() <= bound)
    count = int(differs.sum())
    if not count:
        return 0, 0, "", ""
    at = int(differs.nonzero()[0])
    right = _number(expected[at])
    if bound is not None:
        right += f" within {float(bound[at]):.3g}"
    return count, at, _number(found[at]), right


def _number(value: torch.Tensor) -> str:
    plain = value.item()
    if not isinstance(plain, float):
        return str(plain)
    # values that differ in their bits alone, as NaN do, are shown by these
    text = f"{plain:.9g}" if value.dtype != torch.float64 else repr(plain)
    if math.isfinite(plain):
        return text
    data = value.reshape(1).view(torch.uint8).tolist()
    return f"{text} (bits {bytes(reversed(data)).hex()})"


@dataclass(slots=True)
class PointAnswer:
    """What one rank found at one dtype and count.

    ``refused`` has the library's words by the name of the reduction, "" where there is none.
    ``wrong`` counts elements by place, ``sentence`` is about the first one. ``checked`` counts
    calls, ``seconds`` has the time of each timed call by place.
    """

    dtype: str
    count: int
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    sentence: str = ""
    checked: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused_alone: bool = False
    """Whether the library refused a call on some ranks only, which is not a wrong value."""


def sweep(
    rank: Rank,
    *,
    operation: str,
    points: Sequence[tuple[str, int]],
    repeats: int,
) -> list[dict[str, Any]]:
    """Check and time ``operation`` at each (dtype, count); all ranks make the same calls.

    A dtype that the library refuses at its first point has no further ones.
    """
    stopwatch = Stopwatch(rank.gpu)
    answers: list[PointAnswer] = []
    refused: set[str] = set()
    for dtype, count in points:
        if dtype in refused:
            continue
        rank.step(f"{operation} of {count} {dtype}")
        answer = _check_point(rank, operation, dtype, count)
        if not answer.checked:
            refused.add(dtype)
        elif not sum_of_ranks(rank, float(bool(answer.sentence))):
            _time_point(rank, operation, answer, stopwatch, repeats)
        answers.append(answer)
    return [asdict(each) for each in answers]


def _check_point(rank: Rank, operation: str, dtype: str, count: int) -> PointAnswer:
    answer = PointAnswer(dtype, count)
    redops = REDOPS if operation in REDUCTIONS else ("",)
    for redop in redops:
        for place in PLACES[operation]:
            if redop in answer.refused:
                break
            for kind in kinds(getattr(torch, dtype), redop, rank.world):
                _check_call(rank, operation, redop, place, kind, answer)
                if redop in answer.refused:
                    break
    return answer


def _check_call(
    rank: Rank, operation: str, redop: str, place: str, kind: str, answer: PointAnswer
) -> None:
    """One call whose every element is compared with what it has to be."""
    exchange = _buffers(rank, operation, redop, place, answer)
    inputs = inputs_of(exchange, kind)
    exchange.fill(inputs.sent(rank.rank))
    words = refusal(rank, partial(perform, exchange))
    refusing = sum_of_ranks(rank, float(bool(words)))
    if refusing == rank.world:
        answer.refused[redop] = words
        return
    answer.checked += 1
    if words:
        answer.refused_alone = True
        wrong, sentence = max(1, answer.count), f"rank {rank.rank} alone was refused: {words}"
    else:
        wrong, sentence = compare(exchange, expected(exchange, inputs))
    answer.wrong[place] = answer.wrong.get(place, 0) + wrong
    if wrong and not answer.sentence:
        which = " ".join(each for each in (redop, place.replace("_", " "), kind) if each)
        answer.sentence = f"{which} values: {sentence}"


def inputs_of(exchange: Exchange, kind: str) -> Inputs:
    """The values of that kind that the ranks send."""
    dtype, length = exchange.sent.dtype, exchange.sent.numel()
    name = str(dtype).removeprefix("torch.")
    call = f"{exchange.operation} {exchange.redop} {name} {exchange.count} {kind}"
    return Inputs(
        dtype=dtype,
        world=exchange.world,
        length=length,
        redop=exchange.redop,
        kind=kind,
        seed=zlib.crc32(call.encode()),
    )


def refusal(rank: Rank, call: Callable[[], object]) -> str:
    """Make the call: the library's words if it refuses, else "" when it is done."""
    try:
        call()
        rank.gpu.synchronize()
    except _REFUSALS as error:
        return one_line(str(error))[:300] or type(error).__name__
    return ""


def _buffers(rank: Rank, operation: str, redop: str, place: str, answer: PointAnswer) -> Exchange:
    return Exchange.make(
        operation,
        redop,
        place,
        answer.count,
        getattr(torch, answer.dtype),
        rank.gpu.device,
        rank.rank,
        rank.world,
    )


def compare(
    exchange: Exchange, expected: tuple[torch.Tensor, torch.Tensor | None]
) -> tuple[int, str]:
    """(how many elements this rank holds that are wrong, a sentence about the first)."""
    if not exchange.receives:
        return 0, ""
    wrong, at, value, right = first_wrong(exchange.received.cpu(), *expected)
    if not wrong:
        return 0, ""
    several = f", and {wrong - 1} more elements are wrong" if wrong > 1 else ""
    sentence = f"rank {exchange.rank} has {value} at index {at}, expected {right}{several}"
    return wrong, sentence


def expected(exchange: Exchange, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What this rank must hold, and how far it may be from it; None for the same bits."""
    operation, rank, count = exchange.operation, exchange.rank, exchange.count
    own = slice(rank * count, (rank + 1) * count)
    if exchange.redop:
        whole, bound = inputs.reduced()
        if operation == "reduce_scatter":
            return whole[own], None if bound is None else bound[own]
        return whole, bound
    if operation == "broadcast":
        return inputs.sent(ROOT), None
    if operation == "scatter":
        return inputs.sent(ROOT)[own], None
    if operation == "sendrecv":
        return inputs.sent((rank - 1) % exchange.world), None
    sent = [inputs.sent(each) for each in range(exchange.world)]
    # concatenated as bytes: not every dtype can be
    parts = [each[own] if operation == "all_to_all" else each for each in sent]
    return torch.cat([each.view(torch.uint8) for each in parts]).view(inputs.dtype), None


def _time_point(
    rank: Rank, operation: str, answer: PointAnswer, stopwatch: Stopwatch, repeats: int
) -> None:
    redop = "sum" if operation in REDUCTIONS else ""
    if redop in answer.refused:
        return
    for place in PLACES[operation]:
        exchange = _buffers(rank, operation, redop, place, answer)
        exchange.clear()
        call = partial(perform, exchange)
        seconds = []
        for _ in range(repeats + 1):
            sum_of_ranks(rank, 0.0)
            seconds.append(stopwatch.time(call, 1))
        # the first call makes connections and takes memory
        answer.seconds[place] = seconds[1:]


def sum_of_ranks(rank: Rank, value: float) -> float:
    """The sum of ``value`` over the ranks, which wait for one another here; over the host."""
    rank.gpu.synchronize()
    box = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(box)
    return float(box)
