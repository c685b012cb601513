"""Two calls that do the same work, timed in turns: a ratio without the state of clock or device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.suites.performance.timing import measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.suites.performance.samples import RankSamples
    from portagpu.suites.performance.timing import Pace, Stopwatch


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
