"""``portagpu screen``: whether devices compute wrong results without an error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.cli._common import (
    folder_option,
    junit_option,
    print_lines,
    require_torch,
    results_line,
    run_json_option,
    seconds_of,
    strict_option,
    target_option,
    terminal,
    text_stream,
    usage_errors,
)
from portagpu.cli._levels import level_option, say_old

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from portagpu.runs.results.run import Result, Run


_SECONDS: Final = {"smoke": 10.0, "default": 60.0, "full": 600.0, "deep": 28_800.0}
"""How long each level computes without ``--time``."""


def _indices(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...] | None:
    """The numbers of "0,2,5", or None for all devices."""
    if value == "all":
        return None
    words = value.split(",")
    if not all(each.isascii() and each.isdigit() for each in words):
        raise click.BadParameter(f"{value!r} is not 'all', nor numbers of devices such as 0,2,5")
    return tuple(dict.fromkeys(int(each[:9]) for each in words))


def _complete_probe(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """The names of probes with this prefix."""
    from portagpu.train.exact.probes import PROBES

    return [each.name for each in PROBES if each.name.startswith(incomplete)]


@click.command()
@click.option(
    "--time",
    "seconds",
    callback=seconds_of,
    metavar="TIME",
    help="How long to compute, such as 90s, 10m or 8h. Default: by the level.",
)
@level_option({}, smoke="10 seconds", default="a minute", full="ten minutes", deep="eight hours")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="The number that all operands are made from. Default: the day in UTC, such as 20261201, "
    "so that devices that are screened on one day have the same operands.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_probe,
    help="Only this probe, or those that a pattern such as 'products/*' fits. May be repeated.",
)
@click.option("--probe", "probes", multiple=True, hidden=True)
@click.option("--list", "list_only", is_flag=True, help="List the probes and exit.")
@click.option("--backend", metavar="NAME", help="Screen this backend. Default: this machine's.")
@click.option(
    "--index",
    "indices",
    callback=_indices,
    default="all",
    show_default=True,
    metavar="N,...|all",
    help="The devices, all at the same time.",
)
@target_option("INCONCLUSIVE if a device is a different product.")
@junit_option
@strict_option
@folder_option
@run_json_option
def screen(
    junit: str | None,
    out: Path | None,
    json_to: str | None,
    list_only: bool,
    level: str,
    only: tuple[str, ...],
    probes: tuple[str, ...],
    seconds: float | None,
    **given: Any,
) -> int:
    """Look for silent corruption: wrong results without an error.

    All devices compute the same exact work at the same time, and every result is judged. PASS says
    how many results were judged and which rate of wrong ones that excludes; it does not say that a
    device is healthy. One wrong result is a FAIL, with where it is, whether it happens again, and
    whether the device or the software is to blame.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    What was judged until then counts.
    """
    from portagpu.suites.screen.options import ScreenOptions, UnknownProbe, selected_probes

    if probes:
        say_old("--probe", "--only")
    options = ScreenOptions(
        **given,
        seconds=seconds or _SECONDS[level],
        probes=(*only, *probes),
        command=["portagpu", *sys.argv[1:]],
    )
    with usage_errors(UnknownProbe):
        chosen = selected_probes(options)
    if list_only:
        click.echo("\n".join(each.name for each in chosen))
        return 0
    require_torch("screen")
    from portagpu.cli._run_output import Files, deliver
    from portagpu.runs.engine import UnknownDevice
    from portagpu.runs.results.wording import failures_text
    from portagpu.suites import screen as engine

    files = Files(json_to, junit, out)
    with usage_errors(UnknownDevice):
        run = engine.run(options, _view(files, options.seconds))
    stream = text_stream(json_to)
    _show_table(run, stream)
    lines = ["", *_notes(run), *failures_text(run.results), results_line(run), run.summary_line()]
    written = deliver(run, files, lines)
    if out is not None:
        print_lines([f"wrote {path}" for path in written], stream)
    return run.exit_code


def _view(files: Any, lasts_s: float) -> Any:
    """Shows the current probe, and keeps the files up to what was judged."""
    from portagpu.cli._run_output import View
    from portagpu.runs.results.run import Run
    from portagpu.suites.screen import ScreenProgress

    class Screening(View, ScreenProgress):
        def begin(self, run: Run) -> None:
            self.run = run
            super().begin(run)

        def judged(self, results: Sequence[Result]) -> None:
            self.files.update(Run(self.run.info, list(results)))

    return Screening(files, lasts_s)


_HEAD: Final = ("probe", "results", "inputs", "rate excluded", "verdict")
_RIGHT: Final = frozenset(_HEAD[1:4])


def _by_probe(run: Run) -> dict[str, list[Result]]:
    """The results of each probe, of all devices; those of devices as a whole are left out."""
    found: dict[str, list[Result]] = {}
    for each in run.results:
        if "campaign" in each.extra:
            found.setdefault(each.id.partition("/")[2], []).append(each)
    return found


def _show_table(run: Run, stream: TextIO) -> None:
    """A row for each probe that ran, over all devices."""
    from portagpu.base.units import number
    from portagpu.cli._tables import print_table
    from portagpu.runs.results.run import verdict_of
    from portagpu.suites.screen.tally import excluded_rate

    rows = []
    for name, results in _by_probe(run).items():
        judged = sum(int(each.value) for each in results if isinstance(each.value, float | int))
        inputs = sum(each.extra["inputs"] for each in results)
        verdict = verdict_of(results)
        rate = None if any(each.failed for each in results) else excluded_rate(judged)
        shown = "-" if rate is None else f"{rate:.2g}"
        rows.append((name, number(judged, 12), number(inputs, 12), shown, str(verdict)))
    if rows:
        print_table(stream, terminal(stream), _HEAD, rows, _RIGHT)


def _notes(run: Run) -> Iterator[str]:
    """Lines below the table: what was not judged, and each device as a whole."""
    from portagpu.cli._tables import reason_lines

    judged = [each for each in run.results if not each.failed]
    yield from reason_lines(judged, lambda each: each.id, 3)
    for each in run.results:
        if each.id == "screen/device" and each.reason and not each.failed:
            yield f"{each.device}: {each.reason}"
