"""``portagpu conform``: the conformance suite on this machine's device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from portagpu.base.patience import LIMITS
from portagpu.cli._common import (
    MAX_LIMIT_S,
    STDOUT,
    complete_area,
    folder_option,
    junit_option,
    print_lines,
    require_torch,
    run_json_option,
    seconds_of,
    strict_option,
    target_option,
    usage_errors,
    with_options,
    write_json,
)
from portagpu.cli._levels import level_option

if TYPE_CHECKING:
    from portagpu.suites.conformance.options import Selection

DEEP_S: Final = 1800.0
"""How long the level deep searches without ``--time``."""


def _limit(context: click.Context, option: click.Parameter, value: float) -> float:
    # not click's own range, which a NaN passes
    if not 0.1 <= value <= MAX_LIMIT_S:
        raise click.BadParameter(f"{value:g} is not between 0.1 and {MAX_LIMIT_S:g} seconds")
    return value


def _index(context: click.Context, option: click.Parameter, value: str) -> int | None:
    """The number, or None for all devices."""
    if value == "all":
        return None
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is not the number of a device, nor 'all'")
    return int(value[:9])


def _shard(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    part, slash, parts = value.partition("/")
    numbers = all(each.isascii() and each.isdigit() and int(each[:9]) for each in (part, parts))
    if not slash or not numbers:
        raise click.BadParameter(f"{value!r} is not a shard such as 1/4")
    return int(part[:9]), int(parts[:9])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What to judge, and which cases: the options of the verb but for its outputs."""

    backend: str | None
    index: int | None
    target: str | None
    only: tuple[str, ...]
    list_only: bool
    exit_first: bool
    level: str
    search_s: float | None
    seed: int | None
    program: str | None
    upstream: Path | None
    expected: Path | None
    failed_in: Path | None
    shard: tuple[int, int] | None
    shuffle: int | None
    strict: bool
    timeout_s: float

    def check(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.search_s is not None and self.level != "deep":
            raise click.UsageError("--time needs --level deep: it is how long it searches")
        if self.expected is not None and self.upstream is None:
            raise click.UsageError("--expected needs --upstream: it is of PyTorch's own tests")
        others = self.level != "default" or self.list_only or self.program is not None
        if self.upstream is not None and others:
            raise click.UsageError(
                "--upstream runs PyTorch's own tests: leave out --level, --list, --program"
            )
        if self.program is None:
            return
        if not self.program.strip():
            raise click.UsageError(
                "--program is empty: copy the text that follows it in the failure"
            )
        selects = self.only or self.failed_in or self.shard or self.shuffle is not None
        if selects or self.level != "default" or self.list_only:
            raise click.UsageError(
                "--program runs that program alone: leave out what selects cases, --level and "
                "--list"
            )


@click.command()
@level_option(
    {"smoke": "smoke", "deep": "deep"},
    smoke="a short selection",
    default="every case",
    full="every case, on every device",
    deep="also random programs, for as long as --time",
)
@click.option("--backend", metavar="NAME", help="Judge this backend. Default: this machine's.")
@click.option(
    "--index",
    callback=_index,
    default="0",
    show_default=True,
    metavar="N|all",
    help="Judge this device, or all. Devices after the first run only the single-device cases.",
)
@target_option("Judge by this target; INCONCLUSIVE if this machine is a different one.")
@click.option(
    "--only",
    multiple=True,
    metavar="AREA|ID",
    shell_complete=complete_area,
    help="Run only this area, case id, or id pattern with * and ?. May be repeated.",
)
@click.option("--list", "list_only", is_flag=True, help="List the cases and exit.")
@click.option("-x", "--exitfirst", "exit_first", is_flag=True, help="Stop after the first failure.")
@click.option("-v", "--verbose", is_flag=True, help="Print every result as it comes.")
@click.option(
    "--time",
    "search_s",
    callback=seconds_of,
    metavar="TIME",
    help="How long all random programs of --level deep take: 90s, 30m, 2h.  [default: 30m]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="The seed of random programs; the same seed gives the same programs. Default: of the day "
    "in UTC and the version, such as 20261201000100, which the run prints.",
)
@click.option(
    "--program",
    metavar="TEXT",
    help="Run only this program, which a failure printed, ten times.",
)
@click.option(
    "--upstream",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Run PyTorch's own tests for types of devices on this one: DIR is the folder test of a "
    "checkout of the installed version.",
)
@click.option(
    "--expected",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="With --upstream: known failures, as a TOML file with reasons.",
)
@click.option(
    "--last-failed",
    "failed_in",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run only the cases that failed in FILE, a result file written by --json.",
)
@click.option(
    "--shard",
    callback=_shard,
    metavar="I/N",
    help="Run part I of N; the N parts together are the whole suite.",
)
@click.option(
    "--shuffle", type=int, metavar="SEED", help="Run the cases in a random order with this seed."
)
@junit_option
@strict_option
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    callback=_limit,
    default=LIMITS.case_s,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one case.",
)
@folder_option
@run_json_option
@with_options(_Options)
def conform(
    asked: _Options, verbose: bool, out: Path | None, junit: str | None, json_to: str | None
) -> int:
    """Run the conformance suite: does the device do what its backend claims?

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 3 if something was not judged, 130 if interrupted.
    """
    from portagpu.cli._conform_text import SuiteView, summary
    from portagpu.cli._run_output import Files, deliver
    from portagpu.runs.engine import UnknownDevice
    from portagpu.suites.conformance import ConformOptions
    from portagpu.suites.conformance import conform as run_suite
    from portagpu.suites.conformance.messages import check_dependencies
    from portagpu.suites.conformance.options import Selection, SelectionError
    from portagpu.suites.search.area import ProgramError

    asked.check()
    with usage_errors(ProgramError, SelectionError, UnknownDevice):
        selection = Selection(
            only=asked.only,
            smoke=asked.level == "smoke",
            deep=asked.level == "deep" or asked.list_only,
            failed_in=asked.failed_in,
            shard=asked.shard,
            shuffle=asked.shuffle,
        )
        if asked.list_only:
            _list(selection, asked.backend, json_to)
            return 0
        require_torch("conform")
        check_dependencies()
        options = ConformOptions(
            backend=asked.backend,
            target=asked.target,
            selection=selection,
            index=None if asked.level == "full" and _is_default("index") else asked.index,
            timeout_s=asked.timeout_s,
            exit_first=asked.exit_first,
            seed=asked.seed,
            search_s=(asked.search_s or DEEP_S) if asked.level == "deep" else None,
            program=asked.program or "",
            folder=asked.upstream,
            upstream=asked.upstream is not None,
            expected=asked.expected,
            strict=asked.strict,
            command=["portagpu", *sys.argv[1:]],
        )
        files = Files(json_to, junit, out)
        view = SuiteView(files, verbose=verbose)
        run = run_suite(options, view)
    written = deliver(run, files, summary(run, view.devices).split("\n"))
    if out is not None:
        print_lines([f"wrote {path}" for path in written], view.stream)
    return run.exit_code


def _is_default(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.DEFAULT


def _list(selection: Selection, backend: str | None, json_to: str | None) -> None:
    from portagpu.cli._conform_text import listing
    from portagpu.devices.discovery import plugin
    from portagpu.suites.conformance import list_cases

    overrides = () if backend is None else plugin(backend).overrides
    cases = list_cases(selection)
    entries = [each.to_json(overrides) for each in cases]
    document = {"schema": "portagpu.cases/1", "cases": entries}
    write_json(document, json_to)
    if json_to != STDOUT:
        click.echo(listing(cases, overrides))
