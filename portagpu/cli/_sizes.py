"""Sizes and counts for people."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "unknown"


def size(count: int | None) -> str:
    """Bytes in binary units: ``size(25274793984) == "23.5 GiB"``."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    digits = 0 if value >= 100 or value == int(value) else 1
    return f"{value:.{digits}f} {unit}"


def count(number: int | None, singular: str, plural: str | None = None) -> str:
    """``count(2, "core") == "2 cores"``; unknown numbers say so."""
    if number is None:
        return f"{UNKNOWN} {plural or singular + 's'}"
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
