"""Numbers, sizes and times as text, for terminals and reports."""

from __future__ import annotations

import math
import re
from typing import Final

UNKNOWN: Final = "unknown"
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P")
_RATE: Final = re.compile("([kMGTP]?)(FLOPS|FLOP/s|OPS|B/s)")
_TIMES: Final = ("ns", "µs", "ms", "s")
_TIME_NAMES: Final = {"us": "µs", **{name: name for name in _TIMES}}


def worse_side(unit: str) -> int:
    """Where a measure in ``unit`` is worse: 1 above (times), -1 below (rates, ratios), 0 unknown.

    A "ratio" is what is measured divided by what it is compared with, as a speed: less is worse.
    Temperatures, sizes, counts and shares are good or bad by what they are of.
    """
    if unit in _TIME_NAMES:
        return 1
    return -1 if _RATE.fullmatch(unit) or unit.endswith("/s") or unit == "ratio" else 0


def number(value: float, digits: int = 4) -> str:
    """Significant digits, thousands grouped, no trailing zeros: "1,235", "0.0123"."""
    if value == 0:
        return "0"
    if not math.isfinite(value):  # a huge number in a smaller unit
        return str(value)
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 12 or magnitude < -4:
        return f"{value:.3g}"
    places = max(0, digits - 1 - magnitude)
    shown = f"{value:,.{places}f}"
    return shown.rstrip("0").rstrip(".") if places else shown


def quantity(value: float, unit: str | None, *, like: float | None = None) -> str:
    """A number with its unit, in the prefix that fits it: "64 KiB", "410 GFLOPS", "35 µs".

    Sizes have binary prefixes, rates of bytes and operations decimal ones, and times end at
    seconds. Any other unit stays as it is; "1" is a plain number. With ``like`` the prefix is the
    one of that value, so that both can be compared.
    """
    if unit in (None, "", "1"):
        return number(value)
    assert unit is not None  # noqa: S101 - for the type checker
    by = value if like is None else like
    factor, shown = best_prefix(by, unit)
    return f"{number(value * factor)} {shown}"


def best_prefix(value: float, unit: str) -> tuple[float, str]:
    """The prefix that fits ``value``: (factor to multiply it by, its new unit)."""
    prefixes: tuple[str, ...]
    step, suffix = 1000, ""
    if unit in _BINARY:
        prefixes, at, step = _BINARY, _BINARY.index(unit), 1024
    elif unit in _TIME_NAMES:
        prefixes, at = _TIMES, _TIMES.index(_TIME_NAMES[unit])
    elif rate := _RATE.fullmatch(unit):
        prefixes, at, suffix = _DECIMAL, _DECIMAL.index(rate[1]), rate[2]
    else:
        return 1, unit
    shift, magnitude = 0, abs(value)
    while magnitude and magnitude >= step ** (shift + 1) and at + shift < len(prefixes) - 1:
        shift += 1
    while magnitude and magnitude < float(step) ** shift and at + shift > 0:
        shift -= 1
    # one division: the error of several makes 1e12 slightly less than 1 T
    factor, at = (1 / step**shift if shift > 0 else float(step**-shift)), at + shift
    return factor, f"{prefixes[at]}{suffix}"


def to_base(value: float, unit: str) -> tuple[float, str]:
    """``value`` without the prefix of its unit, and that unit: 2.5 GB/s is (2.5e9, "B/s").

    Of rates, sizes and times; any other unit stays as it is.
    """
    if unit in _BINARY:
        return value * 1024 ** _BINARY.index(unit), "B"
    if unit in _TIME_NAMES:
        return value * 1000.0 ** (_TIMES.index(_TIME_NAMES[unit]) - _TIMES.index("s")), "s"
    if rate := _RATE.fullmatch(unit):
        return value * 1000 ** _DECIMAL.index(rate[1]), rate[2]
    return value, unit


def size(count: float | None, digits: int = 3) -> str:
    """Bytes with the largest binary prefix that leaves at least 1: "23.5 GiB"."""
    if count is None:
        return UNKNOWN
    factor, unit = best_prefix(count, "B")
    return f"{number(count * factor, digits)} {unit}"


def share_apart(share: float, limit: float) -> str:
    """``share`` in percent, with as many places as it takes not to look like ``limit``: "10.3%"."""
    return next(
        (text for n in range(6) if (text := f"{share:.{n}%}") != f"{limit:.{n}%}"), f"{share:.6%}"
    )


_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes of "64M", "1.5GiB" or "1048576": every prefix is binary, as in nccl-tests.

    Raises ValueError for another text and for a part of a byte.
    """
    found = _SIZE.fullmatch(text.strip())
    exact = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0.0
    if not exact.is_integer() or exact < 1:
        raise ValueError(f"{text!r} is not a number of bytes: write 1048576, 512K, 64M or 1G")
    return int(exact)


def count(number: int | None, singular: str, plural: str | None = None) -> str:
    """``count(2, "core") == "2 cores"``; unknown numbers say so."""
    if number is None:
        return f"{UNKNOWN} {plural or singular + 's'}"
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    """A time as text: "0 s", "12 ms", "3.4 s", "2 min 5 s", "1 h 0 min"."""
    if seconds < 0.0005:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
