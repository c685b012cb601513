"""Two calls that do the same work, timed in turns: a ratio without the state of clock or device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from portagpu.bench.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import Pace, Stopwatch


def time_in_turns(
    stopwatch: Stopwatch,
    reading: RankSamples,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    pace: Pace,
) -> tuple[list[float], int]:
    """(the time of ``ours`` over that of ``theirs`` for each sample, repeats of ``ours``).

    Each goes first as often: what the one leaves in a cache helps the other.
    """
    second, first = (measure(stopwatch, each, pace) for each in (theirs, ours))
    reading.observe(first)
    reading.observe(second)
    ratios = []
    for turn in range(len(first.seconds)):
        pair = [
            ("ours", partial(stopwatch.time, ours, first.repeats)),
            ("theirs", partial(stopwatch.time, theirs, second.repeats)),
        ]
        taken = {name: call() for name, call in (pair if turn % 2 else pair[::-1])}
        ratios.append(taken["ours"] / first.repeats / (taken["theirs"] / second.repeats))
    return ratios, first.repeats
