"""What every rank runs for :mod:`portagpu.suites.collectives.tune`. Needs torch.

All ranks see the same times, those of the slowest one, and so take the same decisions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.devices.collectives import algorithms as library
from portagpu.devices.collectives.tuning import DEFAULT, WORTH, repeats
from portagpu.facts.nccl_tests.model import SHARED_OUT
from portagpu.facts.nccl_tests.tables import REDUCTIONS
from portagpu.suites.collectives.ranks import (
    ROOT,
    Exchange,
    compare,
    expected,
    inputs_of,
    kinds,
    refusal,
    sum_of_ranks,
)
from portagpu.suites.performance.timing import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.runs.world import Rank

MANY: Final = 32
"""Tensors of ``all_reduce_many``."""
_EXCHANGED: Final = {"all_reduce_many": "all_reduce"}
_SAMPLE_S: Final = 0.0005
"""A shorter call is repeated until it lasts this long, and at most ``_MAX_REPEATS`` times."""
_MAX_REPEATS: Final = 20
_HOPELESS: Final = 2.0
"""After ``_FIRST_ROUNDS`` a candidate that is slower than the best by this factor is left out."""
_FIRST_ROUNDS: Final = 3
_FEWEST_PAIRS: Final = 6


@dataclass(slots=True)
class PointAnswer:
    """What one rank found at one dtype and size, by the name of the way.

    ``refused`` has the library's words; ``wrong`` counts elements, and ``sentence`` is about the
    first one. ``seconds`` are of one call, for each sample. ``winner`` was the fastest at first;
    ``pairs`` are the times of (default, winner) when both were measured again, alternately in one
    order and the other; ``believed`` is whether it was the faster one again.
    """

    dtype: str
    size_bytes: int
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    sentence: str = ""
    checked: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    winner: str = DEFAULT
    pairs: list[tuple[float, float]] = field(default_factory=list)
    believed: bool = False


def sweep(
    rank: Rank,
    *,
    operation: str,
    points: Sequence[tuple[str, int]],
    ways: Sequence[str],
    rounds: int,
    pairs: int,
    point_s: float,
) -> list[dict[str, Any]]:
    """Check and time the ``ways`` of ``operation`` at each (dtype, bytes), and name the fastest.

    All ranks make the same calls. An empty ``ways`` is all that there are. There are fewer
    ``rounds``, and fewer ``pairs``, where they would take longer than ``point_s``.
    """
    stopwatch = Stopwatch(rank.gpu)
    answers: list[PointAnswer] = []
    for dtype, size_bytes in points:
        rank.step(f"{operation} of {size_bytes} B {dtype}")
        answer = PointAnswer(dtype, size_bytes)
        left = _check(rank, operation, ways or tuple(library.WAYS[operation]), answer)
        if not sum_of_ranks(rank, float(bool(answer.sentence))) and DEFAULT in left:
            race = _Race(rank, operation, left, answer, stopwatch)
            race.run(rounds, point_s)
            race.repeat(pairs, point_s)
        answers.append(answer)
    return [asdict(each) for each in answers]


def _exchange(rank: Rank, operation: str, dtype: str, size_bytes: int) -> Exchange:
    basic = _EXCHANGED.get(operation, operation)
    of_type = getattr(torch, dtype)
    share = rank.world if basic in SHARED_OUT else 1
    return Exchange.make(
        basic,
        "sum" if basic in REDUCTIONS else "",
        "out_of_place" if basic in SHARED_OUT else "in_place",
        size_bytes // (of_type.itemsize * share),
        of_type,
        rank.gpu.device,
        rank.rank,
        rank.world,
    )


def _call(operation: str, way: str, exchange: Exchange) -> Callable[[], None]:
    whole = exchange.received
    many = whole.chunk(MANY) if operation in _EXCHANGED else ()
    task = library.Task(output=whole, input=exchange.sent, tensors=many, root=ROOT)
    return partial(library.perform, operation, way, task)


def _check(rank: Rank, operation: str, ways: Sequence[str], answer: PointAnswer) -> list[str]:
    """Compare every element that every way leaves; return the ways that the library takes."""
    left = list(ways)
    exchange = _exchange(rank, operation, answer.dtype, answer.size_bytes)
    for kind in kinds(exchange.sent.dtype, exchange.redop, rank.world):
        inputs = inputs_of(exchange, kind)
        sent = inputs.sent(rank.rank)
        right = expected(exchange, inputs)
        for way in tuple(left):
            exchange.fill(sent)
            words = refusal(rank, _call(operation, way, exchange))
            refusing = sum_of_ranks(rank, float(bool(words)))
            if refusing == rank.world:
                answer.refused[way] = words
                left.remove(way)
                continue
            answer.checked += 1
            if words:
                wrong, sentence = 1, f"rank {rank.rank} alone was refused: {words}"
            else:
                wrong, sentence = compare(exchange, right)
            answer.wrong[way] = answer.wrong.get(way, 0) + wrong
            if wrong and not answer.sentence:
                answer.sentence = f"{way}, {kind} values: {sentence}"
    return left


class _Race:
    """The ways of one point, timed in turns."""

    def __init__(
        self,
        rank: Rank,
        operation: str,
        ways: Sequence[str],
        answer: PointAnswer,
        stopwatch: Stopwatch,
    ) -> None:
        exchange = _exchange(rank, operation, answer.dtype, answer.size_bytes)
        exchange.clear()
        self._timers = {
            way: _Timer(rank, _call(operation, way, exchange), stopwatch) for way in ways
        }
        self._answer = answer

    def run(self, rounds: int, limit_s: float) -> None:
        """Time all ways, and name the fastest where it may be worth it."""
        timers, answer = self._timers, self._answer
        left = list(timers)
        number, last = 0, rounds
        while number < last:
            turn = number % len(left)
            for way in (*left[turn:], *left[:turn]):
                timers[way].sample()
            number += 1
            if number == _FIRST_ROUNDS:
                middle = {way: median(timers[way].slowest()) for way in left}
                bound = _HOPELESS * min(middle.values())
                left = [way for way in left if way == DEFAULT or middle[way] <= bound]
                round_s = sum(timers[way].repeats * middle[way] for way in left)
                last = min(rounds, number + int(limit_s / round_s))
        answer.seconds = {way: each.slowest() for way, each in timers.items()}
        fastest = min(left, key=lambda way: median(answer.seconds[way]))
        if median(answer.seconds[DEFAULT]) >= WORTH * median(answer.seconds[fastest]):
            answer.winner = fastest

    def repeat(self, pairs: int, limit_s: float) -> None:
        """Time the winner and the default again, one after the other in both orders."""
        answer = self._answer
        if answer.winner == DEFAULT:
            return
        default, winner = self._timers[DEFAULT], self._timers[answer.winner]
        pair_s = sum(
            self._timers[way].repeats * median(answer.seconds[way])
            for way in (DEFAULT, answer.winner)
        )
        default.restart()
        winner.restart()
        for number in range(min(pairs, max(_FEWEST_PAIRS, int(limit_s / pair_s)))):
            for timer in (default, winner)[:: 1 if number % 2 == 0 else -1]:
                timer.sample()
        answer.pairs = list(zip(default.slowest(), winner.slowest(), strict=True))
        ratios = [default_s / winner_s for default_s, winner_s in answer.pairs]
        answer.believed = repeats([ratios[::2], ratios[1::2]])


class _Timer:
    """Samples of one call, which the ranks begin together."""

    def __init__(self, rank: Rank, call: Callable[[], None], stopwatch: Stopwatch) -> None:
        self._rank, self._call, self._stopwatch = rank, call, stopwatch
        self._seconds: list[float] = []
        self.repeats = 1
        # the first call makes connections and takes memory
        self.sample()
        self.sample()
        # all ranks have the same times, and so make as many calls
        self.repeats = min(_MAX_REPEATS, max(1, round(_SAMPLE_S / self.slowest()[1])))
        self.restart()

    def restart(self) -> None:
        self._seconds = []

    def sample(self) -> None:
        sum_of_ranks(self._rank, 0.0)
        taken = self._stopwatch.time(self._call, self.repeats)
        self._seconds.append(taken / self.repeats)

    def slowest(self) -> list[float]:
        """Each sample as its slowest rank measured it."""
        box = torch.tensor(self._seconds, dtype=torch.float64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return [float(each) for each in box]
