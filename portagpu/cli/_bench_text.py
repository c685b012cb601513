"""The table of ``portagpu bench``, from its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TextIO

from portagpu.base.units import quantity, size
from portagpu.cli._tables import VERDICT, first_few, print_table, reason_lines
from portagpu.runs.results.expectations import expected_in_words, value_in_words
from portagpu.runs.results.wording import further_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from portagpu.runs.results.run import Result, Run

HEAD: Final = ("measure", "shape", "median", "spread", VERDICT)
"""The columns fit 80 characters; expectations are printed below the table."""
_RIGHT: Final = frozenset({"median", "spread"})
_MOST_IDS: Final = 3


def rows(run: Run) -> list[tuple[str, ...]]:
    """A row of text for each result, in the order of ``HEAD``."""
    return [_row(result) for result in run.results]


def _row(result: Result) -> tuple[str, ...]:
    median = value_in_words(result.value, result.unit) or "-"
    spread = "-"
    if result.spread is not None and isinstance(result.value, int | float) and result.value:
        spread = f"± {result.spread / abs(result.value):.0%}"
    return (_id_and_device(result), shape(result.shape), median, spread, str(result.verdict))


def _id_and_device(result: Result) -> str:
    return result.id if result.device is None else f"{result.id} on {result.device}"


def shape(value: Any) -> str:
    """A shape in short: "1024x1024x1024", "128 MiB", "4 MiB, 2 ranks"."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, dict):
        return "x".join(str(part) for part in value)
    if {"m", "n", "k"} <= value.keys():
        return f"{value['m']}x{value['n']}x{value['k']}"
    parts = [size(value[key]) for key in ("array_bytes", "bytes") if key in value]
    if "ranks" in value:
        parts.append("1 rank" if value["ranks"] == 1 else f"{value['ranks']} ranks")
    return ", ".join(parts)


def show_table(run: Run, console: Console | None, stream: TextIO) -> None:
    """The table on a terminal, or in columns of plain text."""
    print_table(stream, console, HEAD, rows(run), _RIGHT)


def notes(run: Run) -> list[str]:
    """Lines below the table: reasons, what measures do not show, expectations, and the timing.

    Failures are not among them: they have their own section.
    """
    open_ = [result for result in run.results if not result.failed]
    lines = reason_lines(open_, lambda each: each.id, _MOST_IDS)
    shown: dict[str, list[str]] = {}
    for result in run.results:
        if result.does_not_show and result.value is not None:
            shown.setdefault(result.does_not_show, []).append(result.id)
    lines += [f"does not show: {first_few(ids, _MOST_IDS)}: {text}" for text, ids in shown.items()]
    lines += [
        f"expected: {_id_and_device(result)}: {expected_in_words(result.expected)} "
        f"({result.expected['source']})"
        for result in run.results
        if result.expected is not None and not result.failed
    ]
    lines += [
        f"also stated: {_id_and_device(result)}: {figure}"
        for result in run.results
        for figure in further_figures(result)
    ]
    return [*lines, *_shares(run.results), *_timing(run.results)]


def _shares(results: Sequence[Result]) -> list[str]:
    """A line for each limit: what the measures below it reached of it."""
    found: dict[str, list[str]] = {}
    for result in results:
        limit, reached = result.extra.get("of_limit"), result.extra.get("of_ceiling")
        if limit is not None:
            found.setdefault("of the target's limit", []).append(f"{result.id} {limit:.0%}")
        ceiling = result.extra.get("ceiling")
        if ceiling is not None and ceiling["id"] != result.id:
            most = quantity(ceiling["value"], ceiling["unit"])
            text = f"of the ceiling measured here, {most} ({ceiling['id']})"
            found.setdefault(text, []).append(f"{result.id} {reached:.0%}")
    return [f"{text}: {', '.join(shares)}" for text, shares in found.items()]


def _timing(results: Sequence[Result]) -> list[str]:
    measured = [result for result in results if "clock" in result.extra]
    if not measured:
        return []
    threads = sorted({result.extra["threads"] for result in measured})
    clocks = sorted({result.extra["clock"] for result in measured})
    loads = [each for r in measured if (each := r.extra.get("load_average")) is not None]
    load = f", load average {max(loads):.1f} at most" if loads else ""
    counts = " or ".join(str(count) for count in threads)
    return [f"timed by {' and '.join(clocks)}; {counts} threads a rank{load}"]
