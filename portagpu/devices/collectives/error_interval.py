"""How far a model's time may be off: by the errors of the nearest published tables.

Nearest is what differs least in hardware, operation, nodes and size. What was compared with another
operation, another GPU or another size says less, and the interval is wider by ``_PER_STEP`` for
each step of distance. ``tests/benchmarks/cost_models.py`` measures how often intervals hold that
come from all tables but the one that is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.units import number, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.devices.collectives.cost import KnownError, Question

_UNKNOWN_FACTOR: Final = 4.0
"""Of what nothing was compared with: models were off by as much where they know least."""
_PER_STEP: Final = 1.5
_SPREAD: Final = 1.3
"""Of the errors of one table, another machine has others."""
_FARTHEST: Final = 4.0
_LIKE: Final = ({"all_gather", "reduce_scatter"}, {"broadcast", "reduce"})
"""Operations that move the same bytes along the same ways."""
_OTHER_ARCHITECTURE, _OTHER_PRODUCT = 1.0, 0.5
_OTHER_NETWORK: Final = 2.5
"""The networks of two clusters differ in more than their GPUs."""
_OTHER_OPERATION, _LIKE_OPERATION = 1.0, 0.5
_OTHER_NODES, _BETWEEN_NODES = 1.0, 3.0
_OTHER_SIZE: Final = 1.0
"""For a factor of 16 between the sizes."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From when to when the measured time is expected, in microseconds.

    ``compared`` is False where no published table is near enough, and the interval is a factor of
    four to both sides. ``words`` say what it rests on.
    """

    low_us: float
    high_us: float
    compared: bool
    words: str

    def __str__(self) -> str:
        return f"{number(self.low_us)} to {number(self.high_us)} µs, {self.words}"


def interval_of(
    question: Question, time_us: float, errors: Iterable[KnownError]
) -> tuple[Interval, KnownError | None]:
    """The interval of a predicted time, and the nearest table's errors.

    :param question: what was asked, with its hardware.
    :param time_us: the predicted time.
    :param errors: all known errors of the model.
    """
    near = [
        (away, each)
        for each in errors
        if each.ratio_low and (away := _distance(question, each)) <= _FARTHEST
    ]
    distance, nearest = min(near, key=lambda each: each[0], default=(0.0, None))
    used = [each for away, each in near if away == distance]
    wider = _SPREAD * _PER_STEP**distance
    highest = max((each.ratio_high or each.ratio_p50 for each in used), default=1.0) * wider
    lowest = min((each.ratio_low or each.ratio_p50 for each in used), default=1.0) / wider
    if nearest is None or highest / lowest > _UNKNOWN_FACTOR**2:
        words = "UNVERIFIED: no published table compares, so a factor of four to both sides"
        low, high = time_us / _UNKNOWN_FACTOR, time_us * _UNKNOWN_FACTOR
        return Interval(low, high, compared=False, words=words), nearest
    words = (
        "by the errors in the nearest published tables, of " if distance else "by the errors in "
    )
    words += _of(used) if distance else f"published tables of {_of(used)}"
    return Interval(time_us / highest, time_us / lowest, compared=True, words=words), nearest


def _of(errors: list[KnownError]) -> str:
    first = errors[0]
    upto = "more" if first.high_bytes is None else size(first.high_bytes)
    nodes = {1: "one node", 2: "two nodes"}.get(first.nodes, "more nodes")
    targets = ", ".join(dict.fromkeys(each.target for each in errors))
    operations = " and ".join(dict.fromkeys(each.operation for each in errors))
    return f"{operations} on {targets}, {nodes}, {size(first.low_bytes)} to {upto}"


def _distance(question: Question, error: KnownError) -> float:
    assert question.hardware is not None  # noqa: S101 - a model has answered
    away = 0.0
    if error.target != question.hardware.target:
        same = error.arch == question.hardware.arch
        away += _OTHER_PRODUCT if same else _OTHER_ARCHITECTURE
        away += _OTHER_NETWORK if error.nodes > 1 else 0.0
    if error.operation != question.operation:
        moves_the_same = any({error.operation, question.operation} <= each for each in _LIKE)
        away += _LIKE_OPERATION if moves_the_same else _OTHER_OPERATION
    nodes = min(question.nodes, 3)
    if nodes != error.nodes:
        away += _BETWEEN_NODES if 1 in (nodes, error.nodes) else _OTHER_NODES
    low, high = max(error.low_bytes, 1), error.high_bytes or math.inf
    if question.size_bytes <= error.low_bytes:
        away += _OTHER_SIZE * max(math.log(low / question.size_bytes, 16), 0.25)
    elif question.size_bytes > high:
        away += _OTHER_SIZE * max(math.log(question.size_bytes / high, 16), 0.25)
    return away
