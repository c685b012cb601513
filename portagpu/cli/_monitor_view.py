"""What ``portagpu monitor`` shows: a table that is drawn anew, or a line for each sample."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Final

import click

from portagpu.monitor.sample import Happening, stamp
from portagpu.text import printable
from portagpu.units import size as in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from portagpu.monitor.sample import Round, Sample

_DRAWN_EVERY_S: Final = 0.5
"""Drawing costs more than reading: a faster table would be no more readable."""
_UNKNOWN: Final = "-"
_HEAD: Final = ("device", "address", "busy", "power", "heat", "memory", "errors", "state", "clock")
_LEFT: Final = frozenset({0, 1, 7})
_NAME_WIDTHS: Final = (10, 28)
"""The narrowest and the widest column of names."""
_BAD: Final = frozenset({Happening.STALLED, Happening.GONE, Happening.ERRORS, Happening.PROBLEM})


class Lines:
    """One line for each sample of a round, where there is no terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, each: Round) -> None:
        for sample in each.samples:
            place = sample.pci or sample.uuid or sample.kind
            said = ", ".join(_parts(sample)) or "no values"
            name = f"{sample.name}: " if sample.name else ""
            click.echo(printable(f"{stamp(each.time)} {place} {name}{said}"), file=self._stream)


class LiveTable:
    """A table of all devices on a terminal. A device that misses a look keeps its last values."""

    def __init__(self, console: Console, title: str, stale_s: float) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._stale_s = stale_s
        self._seen: dict[str, tuple[float, Sample]] = {}
        self._drawn_at = -1e9

    def write(self, each: Round) -> None:
        self._seen |= {sample.key: (each.at_s, sample) for sample in each.samples}
        now = time.monotonic()
        if now - self._drawn_at >= _DRAWN_EVERY_S:
            self._drawn_at = now
            self._live.update(self._table(each), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(printable(text))

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def _table(self, each: Round) -> Text:
        rows: list[tuple[Sequence[str], str]] = [(_HEAD, "bold")]
        for at_s, sample in self._seen.values():
            age = each.at_s - at_s
            state, style = _state(sample, age if age > self._stale_s else None)
            name = sample.name or sample.vendor or sample.kind
            busy, memory, power, heat, clock, errors = _cells(sample)
            place = sample.pci or sample.uuid or ""
            cells = (name, place, busy, power, heat, memory, errors, state, clock)
            rows.append((tuple(map(printable, cells)), style))
        title = f"{self._title}, {stamp(each.time)}"
        return _aligned(title, rows, self._live.console.width)


def _aligned(title: str, rows: Sequence[tuple[Sequence[str], str]], width: int) -> Text:
    """The title and a line for each row of (cells, style), in columns; what is too wide is cut.

    rich's own table takes 6 ms to draw 9 rows, more than half of the budget at a look a second.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    widths = [max(map(cell_len, column)) for column in zip(*(c for c, _ in rows), strict=True)]
    least, most = _NAME_WIDTHS
    room = width - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = max(least, min(widths[0], most, room))
    found = Text(f"{title}\n", no_wrap=True, overflow="ellipsis")
    for cells, style in rows:
        padded = (
            set_cell_size(cell, size) if number in _LEFT else " " * (size - cell_len(cell)) + cell
            for number, (cell, size) in enumerate(zip(cells, widths, strict=True))
        )
        found.append("  ".join(padded).rstrip() + "\n", style)
    return found


def say_events(each: Round, say: Callable[[str], None]) -> None:
    """Give each event of the round as one line to ``say``."""
    for event in each.events:
        mark = "! " if event.event in _BAD else ""
        say(f"{stamp(each.time)} {mark}{event.text}")


def _state(sample: Sample, age_s: float | None) -> tuple[str, str]:
    """What there is to say beside the values, and the row's style."""
    if age_s is not None:
        return f"no reading for {age_s:.0f} s", "dim"
    if sample.error:
        return sample.error, "bold red"
    words = ["stalled?"] if sample.stalled else []
    words += [f"asks for {sample.recovery}"] if sample.recovery else []
    words += sample.throttling or ()
    return ", ".join(words), "bold red" if sample.stalled else "yellow" if words else ""


def _cells(sample: Sample) -> Iterator[str]:
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    yield _number(sample.utilization_percent, " %")
    yield (
        _UNKNOWN
        if used is None
        else f"{in_bytes(used)}/{in_bytes(total)}"
        if total
        else in_bytes(used)
    )
    yield _power(sample)
    yield _number(max(sample.temperatures_c.values(), default=None), " °C")
    yield _number(sample.clock_mhz, " MHz")
    yield str(sum(sample.errors_since_start.values())) if sample.errors_since_start else _UNKNOWN


def _power(sample: Sample) -> str:
    if sample.power_w is None:
        return _UNKNOWN
    limit = f"/{sample.power_limit_w:.0f}" if sample.power_limit_w is not None else ""
    return f"{sample.power_w:.0f}{limit} W"


def _number(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}{unit}"


def _parts(sample: Sample) -> Iterator[str]:
    """What is known of the sample, in words."""
    busy, memory, power, temperature, clock, errors = _cells(sample)
    known = (f"{busy} busy" if busy != _UNKNOWN else _UNKNOWN, memory, power, temperature, clock)
    yield from (each for each in known if each != _UNKNOWN)
    if errors not in (_UNKNOWN, "0"):
        yield f"{errors} errors since the start"
    if sample.throttling:
        yield f"slowed by {', '.join(sample.throttling)}"
    if sample.stalled:
        yield "may be stalled"
    if sample.recovery:
        yield f"asks for {sample.recovery}"
    if sample.error:
        yield sample.error
