"""Bars, lines of the past and processes, for the table of ``portagpu monitor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.base.text import printable
from portagpu.base.units import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from portagpu.checks.monitor.sample import Sample

_BAR: Final = 8
"""Signs of a bar."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
_USER_CHARS: Final = 12


def busy_share(sample: Sample) -> float | None:
    """The share of time in which the device was busy, 0 to 1."""
    return None if sample.utilization_percent is None else sample.utilization_percent / 100.0


def memory_share(sample: Sample) -> float | None:
    """The share of the memory that is in use, 0 to 1."""
    if sample.memory_used_bytes is None or not sample.memory_total_bytes:
        return None
    return sample.memory_used_bytes / sample.memory_total_bytes


def bar(share: float | None, *, plain: bool = False) -> str:
    """A bar of 8 signs; blanks where the share is unknown."""
    if share is None:
        return " " * _BAR
    eighths = round(8 * _BAR * min(max(share, 0.0), 1.0))
    whole, rest = divmod(eighths, 8)
    if plain:
        return "#" * whole + "-" * (_BAR - whole)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_BAR, "·")


def sparkline(percents: Sequence[float | None]) -> str:
    """A sign for each value of 0 to 100, a blank for one that is not known."""
    last = len(_HEIGHTS) - 1
    return "".join(
        " " if each is None else _HEIGHTS[round(last * min(max(each, 0.0), 100.0) / 100.0)]
        for each in percents
    )


def process_lines(samples: Sequence[Sample], width: int, most: int) -> Iterator[str]:
    """The processes of devices, the largest first, in at most so many lines with their head."""
    found = [
        (process.memory_bytes or 0, process, sample.pci or sample.uuid or sample.key)
        for sample in samples
        for process in sample.running or ()
    ]
    if not found or most < 3:
        return
    found.sort(key=lambda each: -each[0])
    shown = found if len(found) <= most - 2 else found[: most - 3]
    places = max(len(place) for _, _, place in found)
    yield ""
    head = f"{'pid':>9}  {'user':<{_USER_CHARS}}  {'memory':>9}  {'device':<{places}}  command"
    yield head[:width]
    for _, process, place in shown:
        memory = "-" if process.memory_bytes is None else size(process.memory_bytes)
        user = printable(process.user or "-")
        user = user if len(user) <= _USER_CHARS else f"{user[: _USER_CHARS - 1]}…"
        name = printable(process.name or "-")
        line = f"{process.pid:>9}  {user:<{_USER_CHARS}}  {memory:>9}  {place:<{places}}  {name}"
        yield line if len(line) <= width else f"{line[: width - 1]}…"
    if more := len(found) - len(shown):
        yield f"and {more} more"
