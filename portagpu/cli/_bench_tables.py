"""Tables of ``portagpu bench``: a run, its peers, and rows for a target's file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.base.units import quantity, size
from portagpu.cli._common import (
    check_kept,
    ocp_place,
    print_lines,
    results_line,
    terminal,
    text_stream,
    usage_errors,
)
from portagpu.cli._process import NOT_JUDGED
from portagpu.cli._tables import VERDICT, first_few, print_table, reason_lines
from portagpu.runs.results.wording import expected_in_words, further_figures, value_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from portagpu.runs.results.run import Result, Run


HEAD: Final = ("measure", "shape", "median", "spread", VERDICT)
"""The columns fit 80 characters; expectations are printed below the table."""
_RIGHT: Final = frozenset({"median", "spread"})
_MAX_IDS: Final = 3


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
    lines = reason_lines(open_, lambda each: each.id, _MAX_IDS)
    shown: dict[str, list[str]] = {}
    for result in run.results:
        if result.does_not_show and result.value is not None:
            shown.setdefault(result.does_not_show, []).append(result.id)
    lines += [f"does not show: {first_few(ids, _MAX_IDS)}: {text}" for text, ids in shown.items()]
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


_PEERS_HEAD: Final = ("measure", "peers", "median", "MAD", "unlike")
_PEERS_RIGHT: Final = frozenset({"peers", "median", "MAD", "unlike"})


def read_runs(names: Sequence[str]) -> list[Run]:
    """The runs in files and folders; raises UsageError with one line.

    A run whose clock was wrong or jumped does not count: expectations name its day, and its times
    are compared with those of others.
    """
    from portagpu.cli._run_output import read_results

    if not names:
        raise click.UsageError("name the results: files that --json wrote, or folders of them")
    return [each.run for each in read_results(map(Path, names))[0]]


def compare_peers(names: Sequence[str], json_to: str | None, junit: str | None) -> int:
    """Compare the results with each other, print and write the comparison, return its exit code."""
    from portagpu.cli._run_output import Files, deliver
    from portagpu.reports.bundles.document import find_files
    from portagpu.runs.results.wording import failures_text
    from portagpu.suites.performance.fleet import NoPeers, compare_runs

    files = Files(json_to, junit)
    files.check()
    check_kept([path for path, _ in find_files(map(Path, names))], json_to, ocp_place(), junit)
    with usage_errors(NoPeers):
        run = compare_runs(read_runs(names), ["portagpu", *sys.argv[1:]])
    stream = text_stream(json_to)
    print_table(stream, terminal(stream), _PEERS_HEAD, _peer_rows(run), _PEERS_RIGHT)
    open_ = [result for result in run.results if not result.failed]
    lines = ["", *reason_lines(open_, lambda each: f"{each.id} on {each.device}", 3), ""]
    lines += failures_text(run.results)
    deliver(run, files, [*lines, results_line(run), run.summary_line()])
    return run.exit_code


def _peer_rows(run: Run) -> list[tuple[str, ...]]:
    """A row for each measure, with how many peers have a number and how many are unlike."""
    rows = []
    for name in dict.fromkeys(result.id for result in run.results):
        own = [result for result in run.results if result.id == name]
        first = next((each for each in own if each.unit is not None), own[0])
        figures = (first.extra.get("peers_median"), first.extra.get("peers_mad"))
        rows.append(
            (
                name,
                str(sum(each.value is not None for each in own)),
                *(value_in_words(each, first.unit) or "-" for each in figures),
                str(sum(each.failed for each in own)),
            )
        )
    return rows


def calibrate(names: Sequence[str]) -> int:
    """Print rows for a target's file to standard output, and what is left out to standard error."""
    from portagpu.facts.targets import load_target
    from portagpu.suites.performance.fleet import CannotCalibrate, check_runs, propose

    runs = read_runs(names)
    with usage_errors(CannotCalibrate):
        target = load_target(check_runs(runs))
        proposal = propose(runs, target)
    if proposal.rows:
        click.echo(proposal.text)
    reasons: dict[str, list[str]] = {}
    for name, reason in proposal.left_out:
        reasons.setdefault(reason, []).append(name)
    lines = [f"left out: {', '.join(which)}: {reason}" for reason, which in reasons.items()]
    rows = f"{len(proposal.rows)} expectation{'s' * (len(proposal.rows) != 1)}"
    lines.append(f"proposed {rows} for {target.id}; check them before you add them to its file")
    print_lines(lines, sys.stderr)
    return 0 if proposal.rows else NOT_JUDGED
