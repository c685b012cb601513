"""What ``portagpu monitor`` shows on a terminal, and the keys that it reads there: a table that is
redrawn, with bars, lines of the past and processes; or a line for each sample.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Final

import click

from portagpu.base.text import printable
from portagpu.base.units import size as in_bytes
from portagpu.checks.monitor.run import ReaderGone
from portagpu.checks.monitor.sample import Happening, Sample, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from rich.console import Console
    from rich.text import Text

    from portagpu.checks.monitor.sample import Round


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
    """The processes of devices, the largest first, in at most this many lines with their head."""
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
        memory = "-" if process.memory_bytes is None else in_bytes(process.memory_bytes)
        user = printable(process.user or "-")
        user = user if len(user) <= _USER_CHARS else f"{user[: _USER_CHARS - 1]}…"
        name = printable(process.name or "-")
        line = f"{process.pid:>9}  {user:<{_USER_CHARS}}  {memory:>9}  {place:<{places}}  {name}"
        yield line if len(line) <= width else f"{line[: width - 1]}…"
    if more := len(found) - len(shown):
        yield f"and {more} more"


_DRAWN_EVERY_S: Final = 0.5
"""Drawing costs more than reading: a faster table would be no more readable."""
_UNKNOWN: Final = "-"
_FREE: Final = "ok"
"""The state of a device that nothing slows, as its source says, and that asks for nothing."""
_NUMBERS: Final = ("busy", "power", "heat", "memory", "errors", "clock")
_LEFT: Final = frozenset({"device", "address", "state", "last looks"})
_LOOKS: Final = 24
"""How many looks a line of the past has."""
_ORDERS: Final[tuple[tuple[str, Callable[[Sample], float | None] | None], ...]] = (
    ("device", None),
    ("busy", lambda each: each.utilization_percent),
    ("memory", lambda each: each.memory_used_bytes),
    ("power", lambda each: each.power_w),
    ("heat", lambda each: max(each.temperatures_c.values(), default=None)),
)
"""How rows may be sorted, the largest first; by device they stay as they are."""
_NAME_WIDTHS: Final = (10, 32)
"""The narrowest and the widest column of names."""
_PRODUCT_WIDTH: Final = 18
"""With which a GPU's name still names its product: "Instinct MI300X VF", "GeForce RTX 4090 D"."""
_STATE_WIDTH: Final = 36
"""Of a state's short words, for which numbers give way: "stalled?, asks for reset, throttling"."""
_UUID_WIDTH: Final = 16
_MARK: Final = "…"
"""Where something was cut: without it, an H200 would be an H20."""
_BAD: Final = frozenset({Happening.STALLED, Happening.GONE, Happening.ERRORS, Happening.PROBLEM})


class Lines:
    """One line for each sample of a round, where there is no terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, each: Round) -> None:
        for sample in each.samples:
            place = sample.pci or sample.uuid or sample.kind
            values = ", ".join(_parts(sample)) or "no values"
            name = f"{sample.name}: " if sample.name else ""
            line = f"{stamp(each.time)} {place} {name}{values}"
            click.echo(printable(line), file=self._stream)


class LiveTable:
    """A table of all devices on a terminal. A device that misses a look keeps its last values."""

    def __init__(self, console: Console, title: str, stale_s: float) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False)
        self._title = title
        self._stale_s = stale_s
        self._seen: dict[str, tuple[float, Sample]] = {}
        self._past: dict[str, deque[float | None]] = {}
        self._last: Round | None = None
        self._order = 0
        self._only_bad = False
        self._ends = False
        self._drawn_at = -1e9
        self.keys = ""
        """What the keys do, for the title."""

    def write(self, each: Round) -> None:
        """Show a round. Raises ReaderGone after the key q."""
        if self._ends:
            raise ReaderGone
        self._last = each
        self._seen |= {sample.key: (each.at_s, sample) for sample in each.samples}
        for sample in each.samples:
            past = self._past.setdefault(sample.key, deque(maxlen=_LOOKS))
            past.append(sample.utilization_percent)
        now = time.monotonic()
        if now - self._drawn_at >= _DRAWN_EVERY_S:
            self._drawn_at = now
            self._draw(each)

    def press(self, key: str) -> bool:
        """Do what a key asks for; False where the monitor shall not wait any longer."""
        if key in "sS":
            self._order = (self._order + 1) % len(_ORDERS)
        elif key in "fF":
            self._only_bad = not self._only_bad
        elif key in "qQ":
            self._ends = True
        if self._last is not None and not self._ends:
            self._draw(self._last)
        return not self._ends

    def _draw(self, each: Round) -> None:
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
        order, value = _ORDERS[self._order]
        rows = []
        for at_s, sample in self._seen.values():
            age = each.at_s - at_s
            words, style = _state(sample, age if age > self._stale_s else None)
            if not self._only_bad or words[0] not in (_FREE, _UNKNOWN):
                rows.append((sample, words, style))
        if value is not None:
            # the sort is stable: devices that are as busy keep their places
            rows.sort(key=lambda row: -(value(row[0]) or 0.0))
        asked = [f"sorted by {order}" if value else "", "not ok alone" if self._only_bad else ""]
        parts = [self._title, stamp(each.time), *asked, self.keys]
        samples, states, styles = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        console = self._live.console
        found = _aligned(
            ", ".join(filter(None, parts)),
            samples,
            states,
            styles,
            console.width,
            {key: list(past) for key, past in self._past.items()},
            plain=not console.encoding.lower().startswith("utf"),
        )
        room = console.height - len(rows) - 4
        for line in process_lines(samples, console.width, room):
            found.append(line + "\n")
        return found


def _aligned(
    title: str,
    samples: Sequence[Sample],
    states: Sequence[tuple[str, str]],
    styles: Sequence[str],
    width: int,
    past: Mapping[str, Sequence[float | None]] | None = None,
    *,
    plain: bool = False,
) -> Text:
    """The title and a line for each sample, in columns that fit where that is possible.

    ``states`` has each state in full and in short, ``past`` the utilisation of the last looks by
    device; with ``plain`` bars are of ASCII, and lines of the past are left out. rich's own table
    takes 6 ms to draw 9 rows, more than half of the budget at a look a second.
    """
    from rich.cells import cell_len
    from rich.text import Text

    columns, narrower = _columns(samples, past or {}, plain=plain)
    columns["state"] = [printable(short) for _, short in states]

    def measure() -> dict[str, int]:
        widths = {head: max(map(cell_len, (head, *cells))) for head, cells in columns.items()}
        widths["state"] = min(widths["state"], _STATE_WIDTH)
        widths["device"] = min(widths["device"], _NAME_WIDTHS[1])
        return widths

    def room(widths: dict[str, int], of: str) -> int:
        return (
            width - sum(size for head, size in widths.items() if head != of) - 2 * len(widths) + 2
        )

    widths = measure()
    order = list(columns)
    left_out: dict[str, list[str]] = {}
    for head, other in narrower:
        if room(widths, "state") >= widths["state"]:
            break
        if other is None:
            # errors may be left out for two reasons
            left_out[head] = columns.pop(head, left_out.get(head, []))
        else:
            columns[head] = other
        widths = measure()
    for head in reversed(left_out):
        # a wide column that went later may leave room for a narrow one that went before
        columns[head] = left_out[head]
        if room(measure(), "state") < measure()["state"]:
            del columns[head]
    columns = {head: columns[head] for head in order if head in columns}
    widths = measure()
    widths["device"] = max(_NAME_WIDTHS[0], min(widths["device"], room(widths, "device")))
    left = max(room(widths, "state"), len("state"))
    columns["state"] = [
        whole if cell_len(whole := printable(full)) <= left else short
        for (full, _), short in zip(states, columns["state"], strict=True)
    ]
    widths["state"] = min(left, max(map(cell_len, ("state", *columns["state"]))))
    # what is wrong stands first: it is what somebody looks for
    columns = {"state": columns.pop("state"), **columns}
    widths = {head: widths[head] for head in columns}
    found = Text(f"{title}\n", no_wrap=True, overflow="ellipsis")
    for cells, style in zip(
        (tuple(columns), *zip(*columns.values(), strict=True)), ("bold", *styles), strict=True
    ):
        padded = (
            _sized(cell, size, left=head in _LEFT)
            for cell, (head, size) in zip(cells, widths.items(), strict=True)
        )
        found.append("  ".join(padded).rstrip() + "\n", style)
    return found


def _columns(
    samples: Sequence[Sample], past: Mapping[str, Sequence[float | None]], *, plain: bool
) -> tuple[dict[str, list[str]], list[tuple[str, list[str] | None]]]:
    """The columns but the state's, and what makes them narrower, the least loss first.

    That is other cells for a column, or None, which leaves it out.
    """
    names = [each.name or each.vendor or each.kind for each in samples]
    places = [each.pci or each.uuid or "" for each in samples]
    numbers = [dict(zip(_NUMBERS, _cells(each), strict=True)) for each in samples]
    columns = {"device": names, "address": places}
    columns |= {head: [each[head] for each in numbers] for head in _NUMBERS}
    simple = {head: columns[head] for head in ("busy", "memory")}
    shares = {"busy": busy_share, "memory": memory_share}
    for head, share in shares.items():
        bars = [bar(share(each), plain=plain) for each in samples]
        size = max(map(len, simple[head]), default=0)
        columns[head] = [
            f"{drawn} {cell:>{size}}" for drawn, cell in zip(bars, simple[head], strict=True)
        ]
    if past and not plain:
        columns["last looks"] = [sparkline(past.get(each.key, ())) for each in samples]
    bare = [_without_vendor(name, each.vendor) for name, each in zip(names, samples, strict=True)]
    domains = {each.pci.partition(":")[0] for each in samples if each.pci}
    same = f"{domains.pop()}:" if len(domains) == 1 else ""
    short = [_cut(place.removeprefix(same), _UUID_WIDTH) for place in places]
    narrow = [*map(_in_one_unit, simple["memory"])]
    # first what says nothing more, then the bars
    narrower: list[tuple[str, list[str] | None]] = [
        ("device", bare),
        ("memory", [*map(_in_one_unit, columns["memory"])]),
    ]
    if all(cell == _UNKNOWN for cell in columns["errors"]):
        narrower.append(("errors", None))
    if "last looks" in columns:
        narrower.append(("last looks", None))
    narrower += [("memory", narrow), ("busy", simple["busy"]), ("address", short), ("clock", None)]
    narrower.append(("device", [_cut(name, _PRODUCT_WIDTH) for name in bare]))
    narrower.append(("power", [_draw(each) for each in samples]))
    # a state is never cut for a number, nor an address
    narrower += [(head, None) for head in ("heat", "memory", "power", "busy", "errors")]
    printed = {head: [*map(printable, cells)] for head, cells in columns.items()}
    return printed, [(head, cells and [*map(printable, cells)]) for head, cells in narrower]


def _without_vendor(name: str, vendor: str | None) -> str:
    first, _, rest = name.partition(" ")
    return rest if rest and first.lower() == (vendor or "").lower() else name


def _in_one_unit(memory: str) -> str:
    """ "131/141 GiB" for "131 GiB/141 GiB", also after a bar."""
    used, _, total = memory.partition("/")
    number, _, unit = used.rpartition(" ")
    return f"{number}/{total}" if total and total.endswith(f" {unit}") else memory


def _sized(cell: str, size: int, *, left: bool) -> str:
    """``cell`` in a column of ``size``; what is cut shows a mark."""
    from rich.cells import cell_len

    cut = _cut(cell, size)
    blanks = " " * (size - cell_len(cut))
    return cut + blanks if left else blanks + cut


def _cut(cell: str, size: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return cell if cell_len(cell) <= size else set_cell_size(cell, size - 1).rstrip() + _MARK


def say_events(each: Round, say: Callable[[str], None]) -> None:
    """Give each event of the round as one line to ``say``."""
    for event in each.events:
        mark = "! " if event.event in _BAD else ""
        say(f"{stamp(each.time)} {mark}{event.text}")


def _state(sample: Sample, age_s: float | None) -> tuple[tuple[str, str], str]:
    """What there is to say of a device, in full and in short, and the row's style."""
    if age_s is not None:
        return (f"no reading for {age_s:.0f} s",) * 2, "dim"
    if sample.error:
        return (sample.error,) * 2, "bold red"
    words = ["stalled?"] if sample.stalled else []
    words += [f"asks for {sample.recovery}"] if sample.recovery else []
    slowed = ["throttling"] if sample.throttling else []
    if not words and not slowed:
        return (_FREE if sample.throttling is not None else _UNKNOWN,) * 2, ""
    style = "bold red" if sample.stalled else "yellow"
    return (", ".join([*words, *(sample.throttling or ())]), ", ".join([*words, *slowed])), style


def _cells(sample: Sample) -> Iterator[str]:
    """What it says of each of ``_NUMBERS``."""
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    yield _number(sample.utilization_percent, " %")
    yield _power(sample)
    yield _number(max(sample.temperatures_c.values(), default=None), " °C")
    yield (
        _UNKNOWN
        if used is None
        else f"{in_bytes(used)}/{in_bytes(total)}"
        if total
        else in_bytes(used)
    )
    yield str(sum(sample.errors_since_start.values())) if sample.errors_since_start else _UNKNOWN
    yield _number(sample.clock_mhz, " MHz")


def _power(sample: Sample) -> str:
    if sample.power_w is None:
        return _UNKNOWN
    limit = f"/{sample.power_limit_w:.0f}" if sample.power_limit_w is not None else ""
    return f"{sample.power_w:.0f}{limit} W"


def _draw(sample: Sample) -> str:
    """The power without its limit."""
    return _number(sample.power_w, " W")


def _number(value: float | None, unit: str) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}{unit}"


def _parts(sample: Sample) -> Iterator[str]:
    """What is known of the sample, in words."""
    busy, power, temperature, memory, errors, clock = _cells(sample)
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


class Keys:
    """Gives each key to ``press``, which returns whether to go on waiting.

    Nothing is read where standard input is not a terminal, or this process not in its foreground.
    """

    def __init__(self, press: Callable[[str], bool]) -> None:
        self._press = press
        self._before: list[Any] | None = None
        self._terminal = -1

    @property
    def are_read(self) -> bool:
        """Whether there is a terminal whose keys are read."""
        return self._before is not None

    def __enter__(self) -> Self:
        import termios
        import tty

        with contextlib.suppress(OSError, ValueError, termios.error):
            terminal = sys.stdin.fileno()
            if os.isatty(terminal) and os.tcgetpgrp(terminal) == os.getpgrp():
                self._before, self._terminal = termios.tcgetattr(terminal), terminal
                # Ctrl-C stays a signal
                tty.setcbreak(terminal, termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        if self._before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
            self._before = None

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until a key ends the waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._before is None or self._terminal < 0:
                time.sleep(left)
                return
            if not select.select([self._terminal], [], [], left)[0]:
                return
            typed = os.read(self._terminal, 64)
            if not typed:
                # the terminal was closed
                self._terminal = -1
                continue
            if not all(self._press(key) for key in typed.decode("ascii", "ignore")):
                return
