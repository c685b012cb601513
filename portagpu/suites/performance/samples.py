"""The samples that a rank returns for a case: times and work, or why there are none.

Plain JSON values, written in the rank and read by the engine. Two calls that do the same work are
timed in turns, which gives a ratio without the state of clock or device.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from portagpu.suites.performance.timing import measure, summary
from portagpu.train.exact.judge import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from portagpu.suites.performance.timing import Pace, Stopwatch, Timing


@dataclass(slots=True)
class Point:
    """One size: seconds of one call for each sample, and the ``work`` of one call.

    ``work`` is operations or bytes, bus factors included; with 0 the time itself is the value.
    ``x`` is the size in bytes where the case has several sizes. ``flops`` and ``bytes`` are what
    one call computes and moves at least, for its place under a roofline; None where not counted.
    """

    x: float
    seconds: list[float]
    repeats: int
    work: float
    flops: float | None = None
    bytes: float | None = None


class WrongValue(NamedTuple):
    """What is wrong with values, in one sentence, and the digest of the wrong elements.

    ``digest`` is that of their places and bits (``portagpu.train.exact.judge``): two devices that
    are wrong in the same bits have the same. It is empty where only the sentence is known.
    """

    sentence: str
    digest: str = ""


@dataclass(slots=True)
class RankSamples:
    """One rank's answer. A ``wrong`` value takes every number with it; ``skip`` says why nothing
    was measured."""

    points: list[Point] = field(default_factory=list)
    wrong: str = ""
    digest: str = ""
    """That of the wrong elements; empty where nothing has one."""
    other_work: bool = False
    """Whether something else ran than was asked for, which is no wrong value."""
    skip: str = ""
    clock: str = ""
    resolution_s: float = 0.0
    threads: int = 0
    stable: bool = True
    """Whether every warm-up ended because its rounds agreed."""
    telemetry: list[dict[str, float]] = field(default_factory=list)
    """What the device showed of itself while it was timed."""
    load_average: float | None = None
    """How many tasks wanted a CPU in the last minute, when the reading began; None is unknown."""
    notes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, stopwatch: Stopwatch) -> RankSamples:
        """Empty samples for ``stopwatch``, with torch's present number of threads."""
        import torch

        return cls(
            clock=stopwatch.clock,
            resolution_s=stopwatch.resolution_s,
            threads=torch.get_num_threads(),
            load_average=_load_average(),
        )

    def keep(
        self,
        timing: Timing,
        *,
        work: float = 0.0,
        x: float = 0.0,
        flops: float | None = None,
        moved: float | None = None,
    ) -> None:
        """Add what was timed at size ``x``: ``flops`` and ``moved`` bytes are those of one call."""
        self.points.append(Point(x, list(timing.seconds), timing.repeats, work, flops, moved))
        self.observe(timing)

    def observe(self, timing: Timing) -> None:
        """Note how the warm-up ended and what the device showed, and no time."""
        self.stable = self.stable and timing.stable
        self.telemetry += [dict(each) for each in timing.telemetry]

    def telemetry_summary(self) -> dict[str, Any] | str:
        """The readings in short, or why there are none."""
        return summary(self.telemetry)

    def keep_ratios(self, times: Sequence[float], *, repeats: int, work: float) -> None:
        """Add times over those of something else, measured in turns; ``work`` over the other's."""
        self.points.append(Point(0.0, list(times), repeats, work))

    def reject(self, wrong: WrongValue | str | None, what: str = "") -> None:
        """Note that a value was wrong, in ``what``; the first sentence stays, and none is none."""
        if wrong and not self.wrong:
            sentence, self.digest = (wrong, "") if isinstance(wrong, str) else wrong
            self.wrong = f"{what}: {sentence}" if what else sentence

    def refuse(self, sentence: str) -> None:
        """Note that something else ran than was asked for; the first sentence stays."""
        if not self.wrong:
            self.wrong, self.other_work = sentence, True

    def to_json(self) -> dict[str, Any]:
        """The reading as a rank returns it; without points where a value was wrong."""
        if self.wrong:
            self.points = []
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RankSamples:
        """The reading that :meth:`to_json` wrote."""
        points = [Point(**point) for point in document["points"]]
        return cls(**{**document, "points": points})


def first_wrong_byte(found: torch.Tensor, expected: torch.Tensor) -> WrongValue | None:
    """The first byte that differs, with the digest of all that do; None if none does."""
    wrong = differences(found.cpu(), expected.cpu())
    if wrong is None:
        return None
    index = int(wrong.places[0])
    sentence = f"byte {index} is {int(found[index])} instead of {int(expected[index])}"
    return WrongValue(sentence, wrong.digest())


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def time_in_turns(
    stopwatch: Stopwatch,
    reading: RankSamples,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    pace: Pace,
) -> tuple[list[float], int]:
    """(the time of ``ours`` over that of ``theirs`` for each sample, repeats of ``ours``)."""
    second, first = (measure(stopwatch, each, pace) for each in (theirs, ours))
    reading.observe(first)
    reading.observe(second)
    times = take_turns(
        stopwatch, (ours, theirs), (first.repeats, second.repeats), len(first.seconds)
    )
    return [one / other for one, other in zip(*times, strict=True)], first.repeats


def take_turns(
    stopwatch: Stopwatch,
    calls: tuple[Callable[[], object], Callable[[], object]],
    repeats: tuple[int, int],
    turns: int,
    prepare: Callable[[], object] | None = None,
) -> tuple[list[float], list[float]]:
    """Seconds of one call of each for every turn. ``prepare`` runs before each, and is not timed.

    Each goes first as often: what the one leaves in a cache helps the other.
    """
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            if prepare is not None:
                prepare()
            seconds = stopwatch.time(calls[which], repeats[which])
            taken[which].append(seconds / repeats[which])
    return taken
