"""The words of vendors in captures (``trace_words.toml``): calls of runtimes, and counters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.facts.vendors import leave_out_table, tables

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE: Final = "trace_words"
COUNTED: Final = ("compute", "memory", "duration")
"""What a counter can be: a percentage of a peak, or the time of its kernel."""


@dataclass(frozen=True, slots=True)
class Words:
    """What vendors call what is looked for."""

    launch: tuple[re.Pattern[str], ...]
    wait: tuple[re.Pattern[str], ...]
    every: tuple[re.Pattern[str], ...]
    """Of all calls of a runtime or driver, launches and waits among them."""
    counters: Mapping[tuple[str, str], str]
    """(metric, unit) -> one of COUNTED."""


@cache
def known_words() -> Words:
    """The words of all vendors; a broken table is left out."""
    launch: list[re.Pattern[str]] = []
    wait: list[re.Pattern[str]] = []
    every: list[re.Pattern[str]] = []
    counters: dict[tuple[str, str], str] = {}
    for vendor, table in dict(tables(TABLE)).items():
        try:
            calls = [re.compile(table["calls"][each]) for each in ("launch", "wait")]
            whole = re.compile(table["calls"].get("every", "(?!)"))
            own = {(each["metric"], each["unit"]): each["is"] for each in table.get("counter", ())}
            if unknown := set(own.values()) - set(COUNTED):
                raise ValueError(f"a counter is {min(unknown)!r} instead of one of {COUNTED}")
        except (KeyError, TypeError, ValueError, re.error) as error:
            leave_out_table(vendor, TABLE, error)
            continue
        launch.append(calls[0])
        wait.append(calls[1])
        every.append(whole)
        counters |= own
    return Words(tuple(launch), tuple(wait), tuple(every), counters)
