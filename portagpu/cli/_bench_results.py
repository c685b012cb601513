"""``portagpu bench`` on saved results: ``--peers`` compares them, ``--calibrate`` proposes rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.cli._common import (
    check_kept,
    print_lines,
    results_line,
    terminal,
    text_stream,
    usage_errors,
)
from portagpu.cli._errors import NOT_JUDGED
from portagpu.cli._tables import print_table, reason_lines
from portagpu.runs.results.expectations import value_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.runs.results.run import Run

_HEAD: Final = ("measure", "peers", "median", "MAD", "unlike")
_RIGHT: Final = frozenset({"peers", "median", "MAD", "unlike"})


def read_runs(names: Sequence[str]) -> list[Run]:
    """The runs in files and folders; raises UsageError with one line.

    A run whose clock was wrong or jumped does not count: expectations name its day, and its times
    are compared with those of others.
    """
    from portagpu.cli._run_output import read_results

    if not names:
        raise click.UsageError("name the results: files of --json, or folders of them")
    return [each.run for each in read_results(map(Path, names))[0]]


def compare_peers(names: Sequence[str], json_to: str | None, junit: str | None) -> int:
    """Compare the results with each other, print and write the comparison, return its exit code."""
    from portagpu.cli._run_output import Files, deliver
    from portagpu.reports.bundles.files import find_files
    from portagpu.runs.results.wording import failures_text
    from portagpu.suites.performance.fleet import NoPeers, compare_runs

    files = Files(json_to, junit)
    files.check()
    check_kept([path for path, _ in find_files(map(Path, names))], json_to, junit)
    with usage_errors(NoPeers):
        run = compare_runs(read_runs(names), ["portagpu", *sys.argv[1:]])
    stream = text_stream(json_to)
    print_table(stream, terminal(stream), _HEAD, _peer_rows(run), _RIGHT)
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
    from portagpu.suites.performance.calibrate import CannotCalibrate, check_runs, propose

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
