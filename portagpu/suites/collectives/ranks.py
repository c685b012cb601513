"""What every rank runs for :mod:`portagpu.suites.collectives.verify`. Needs torch."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.base.text import one_line
from portagpu.facts.nccl_tests.tables import REDUCTIONS
from portagpu.suites.collectives import exchange as library
from portagpu.suites.collectives.exchange import PLACES, ROOT, Exchange
from portagpu.suites.collectives.values import REDOPS, Inputs, first_wrong, kinds
from portagpu.suites.performance.timing import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.world import Rank

_REFUSALS: Final = (RuntimeError, ValueError, TypeError, NotImplementedError)


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
    words = refusal(rank, partial(library.perform, exchange))
    refusing = sum_of_ranks(rank, float(bool(words)))
    if refusing == rank.world:
        answer.refused[redop] = words
        return
    answer.checked += 1
    if words:
        wrong, sentence = max(1, answer.count), f"rank {rank.rank} alone was refused: {words}"
    else:
        wrong, sentence = compare(exchange, expected(exchange, inputs))
    answer.wrong[place] = answer.wrong.get(place, 0) + wrong
    if wrong and not answer.sentence:
        told = " ".join(each for each in (redop, place.replace("_", " "), kind) if each)
        answer.sentence = f"{told} values: {sentence}"


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
    told = f"rank {exchange.rank} has {value} at index {at}, expected {right}{several}"
    return wrong, told


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
        call = partial(library.perform, exchange)
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
