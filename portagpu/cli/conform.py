"""``portagpu conform``: the conformance suite on this machine's device."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from portagpu.cli._common import (
    STDOUT,
    begin_outputs,
    human_stream,
    json_option,
    require_torch,
    results_line,
    say,
    screen,
    write_json,
)
from portagpu.cli._complete import complete_area, complete_target
from portagpu.suite import TIMEOUT_S
from portagpu.text import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.contract import Override
    from portagpu.results.run import Result, Run
    from portagpu.suite.machine import Listed, Machine
    from portagpu.suite.select import Selection


LONGEST_S: Final = 86_400.0
"""A day for one case: not a limit on anybody, but a number that every clock can add."""


def _limit(context: click.Context, option: click.Parameter, value: float) -> float:
    # click's own range lets a NaN, which compares with nothing, through
    if not 0.1 <= value <= LONGEST_S:
        raise click.BadParameter(f"{value:g} is not between 0.1 and {LONGEST_S:g} seconds")
    return value


def _index(context: click.Context, option: click.Parameter, value: str) -> int | None:
    """The number, or None for all devices."""
    if value == "all":
        return None
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is neither the number of a device nor all")
    return int(value[:9])


def _shard(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    part, slash, parts = value.partition("/")
    numbers = all(each.isascii() and each.isdigit() and int(each[:9]) for each in (part, parts))
    if not slash or not numbers:
        raise click.BadParameter(f"{value!r} is not a part of a whole, such as 1/4")
    return int(part[:9]), int(parts[:9])


@click.command()
@click.option("--backend", metavar="NAME", help="The backend to judge; by default this machine's.")
@click.option(
    "--index",
    callback=_index,
    default="0",
    show_default=True,
    metavar="N|all",
    help="The device to judge, or all: each after the first by the cases about one device.",
)
@click.option(
    "--target",
    metavar="ID",
    shell_complete=complete_target,
    help="The target to judge; INCONCLUSIVE where this machine is another.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="AREA|ID",
    shell_complete=complete_area,
    help="Run only this area, id, or id pattern with * and ?; may be given several times.",
)
@click.option("--list", "list_only", is_flag=True, help="List the cases and run none.")
@click.option(
    "-x", "--exitfirst", "stop", is_flag=True, help="Begin nothing after the first failure."
)
@click.option("-v", "--verbose", is_flag=True, help="Tell every result as it comes.")
@click.option("--smoke", is_flag=True, help="Run the short selection.")
@click.option(
    "--last-failed",
    "failed_in",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run only what failed in the result document FILE, which --json wrote.",
)
@click.option(
    "--shard",
    callback=_shard,
    metavar="I/N",
    help="Run the I-th of N parts; together they are the whole suite.",
)
@click.option(
    "--shuffle", type=int, metavar="SEED", help="Run the cases in a random order of this seed."
)
@click.option("--junit", metavar="FILE", help="Also write the results as JUnit XML to FILE.")
@click.option("--strict", is_flag=True, help="UNVERIFIED results lower PASS to UNVERIFIED.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    callback=_limit,
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long one case may take.",
)
@json_option
def conform(
    backend: str | None,
    index: int | None,
    target: str | None,
    only: tuple[str, ...],
    list_only: bool,
    stop: bool,
    verbose: bool,
    smoke: bool,
    failed_in: Path | None,
    shard: tuple[int, int] | None,
    shuffle: int | None,
    junit: str | None,
    strict: bool,
    timeout_s: float,
    json_to: str | None,
) -> int:
    """Run the conformance suite: does this device keep what its backend claims?

    Exit code 0 for PASS, 1 for FAIL or ERROR, 3 where nothing was judged, 130 when interrupted.
    """
    from portagpu.suite.select import Selection, SelectionError
    from portagpu.target import load_target

    try:
        selection = Selection(
            only=only, smoke=smoke, failed_in=failed_in, shard=shard, shuffle=shuffle
        )
        if list_only:
            _list(selection, backend, json_to)
            return 0
        require_torch("conform")
        if target is not None:
            load_target(target)
        indices = _indices(backend, index)
        session = _Session(json_to, strict, target, stop, verbose)
        return session.run(backend, target, selection, timeout_s, junit, indices)
    except SelectionError as error:
        raise click.UsageError(str(error)) from error


def _indices(backend: str | None, index: int | None) -> Sequence[int]:
    """The devices to judge; raises UsageError for one that the backend does not see."""
    from portagpu import registry
    from portagpu.cli._running import check_device

    if index is not None:
        if index:
            check_device(backend, index)
        return [index]
    name = registry.resolve(backend)
    return range(1 if registry.plugin(name).shared else registry.count(name))


def _list(selection: Selection, backend: str | None, json_to: str | None) -> None:
    from portagpu.discovery import plugin
    from portagpu.suite import list_cases

    overrides = () if backend is None else plugin(backend).overrides
    cases = list_cases(selection)
    entries = [each.to_json(overrides) for each in cases]
    document = {"schema": "portagpu.cases/1", "cases": entries}
    write_json(document, json_to)
    if json_to != STDOUT:
        click.echo(_listing(cases, overrides))


def _listing(cases: Sequence[Listed], overrides: Sequence[Override]) -> str:
    from portagpu.suite.ids import base_id

    by_function: dict[str, list[Listed]] = {}
    for each in cases:
        by_function.setdefault(base_id(each.id), []).append(each)
    lines: list[str] = []
    area = ""
    for name, members in by_function.items():
        if members[0].area != area:
            area = members[0].area
            lines.append(f"{area}:" if not lines else f"\n{area}:")
        times = f" ({len(members)} cases)" if len(members) > 1 else ""
        lines.append(f"  {name}{times}\n      {members[0].spec}")
        found = dict.fromkeys(each.override_of(overrides) for each in members)
        lines += [f"      {one.outcome} ({one.pattern}): {one.reason}" for one in found if one]
    return "\n".join([*lines, "", f"{len(cases)} cases in {len(by_function)} functions"])


@dataclass(slots=True)
class _Session:
    """One run of the verb: the results so far, the progress line, the machine."""

    json_to: str | None
    strict: bool
    target: str | None
    stop: bool = False
    verbose: bool = False
    results: list[Result] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)

    def run(
        self,
        backend: str | None,
        target: str | None,
        selection: Selection,
        timeout_s: float,
        junit: str | None,
        indices: Sequence[int] = (0,),
    ) -> int:
        from portagpu.cli._running import Progress
        from portagpu.report.junit import write_junit
        from portagpu.suite import conform as run_suite

        run = self._new_run()
        begin_outputs(run, self.json_to, junit)
        interrupted = False
        with Progress(screen(human_stream(self.json_to))) as progress:
            try:
                run_suite(
                    backend,
                    target,
                    selection,
                    index=indices,
                    timeout_s=timeout_s,
                    on_result=self._take,
                    ended=self._ended,
                    on_start=progress.show,
                    on_machine=self.machines.append,
                )
            except KeyboardInterrupt:
                interrupted = True
        run = self._finish(run, interrupted)
        # the summary first: it must not be lost with a file that cannot be written
        say(summary(run, self.machines).split("\n"), human_stream(self.json_to))
        if self.json_to is not None and self.json_to != STDOUT:
            run.write_json(self.json_to)
        elif self.json_to == STDOUT:
            run.dump(sys.stdout)
        if junit is not None:
            write_junit(run, junit)
        return run.exit_code

    def _take(self, result: Result) -> None:
        self.results.append(result)
        if self.verbose:
            where = f" on {result.device}" if result.device else ""
            why = f": {one_line(result.reason)}" if result.reason else ""
            line = f"{result.verdict:<13}{result.duration_s:6.1f} s  {result.id}{where}{why}"
            print(line, file=human_stream(self.json_to), flush=True)

    def _ended(self) -> str:
        failed = next((each for each in self.results if each.failed), None) if self.stop else None
        return f"not begun, because {failed.id} failed (-x)" if failed is not None else ""

    def _new_run(self) -> Run:
        from portagpu.results.run import new_run

        return new_run(["portagpu", *sys.argv[1:]], target=self.target, strict=self.strict)

    def _finish(self, run: Run, interrupted: bool) -> Run:
        """The run with its results and what is known of the machine by now."""
        from dataclasses import replace

        if self.machines:
            machine = self.machines[0]
            here = machine.target.id if machine.target is not None else None
            devices = (
                {"name": each.product or each.device, "arch": each.arch, "vendor": each.vendor}
                for each in self.machines
            )
            run.info = replace(
                run.info,
                backend=machine.backend,
                target=self.target or here,
                versions={**run.info.versions, **machine.versions},
                devices=tuple(devices),
            )
        run.extend(self.results)
        return run.finish(interrupted=interrupted)


def _where(machines: Sequence[Machine]) -> str:
    """What was judged, and how many devices beside it were not."""
    if not machines:
        return ""
    machine, judged = machines[0], len(machines)
    text = f"on {machine.backend}, {machine.name}"
    if machine.count == 1:
        return text
    if judged == machine.count:
        return f"{text}, all {judged} devices"
    named = " and ".join(each.device for each in machines)
    return f"{text}, {named} of {machine.count} devices: --index all judges all"


def summary(run: Run, machines: Sequence[Machine]) -> str:
    """What was not judged, the areas, every failure, and the verdict."""
    from portagpu.results.run import Verdict
    from portagpu.results.wording import failures_text

    parts = []
    for title, verdict in (
        ("Not judged", Verdict.INCONCLUSIVE),
        ("Unverified", Verdict.UNVERIFIED),
        ("Skipped", Verdict.SKIP),
    ):
        lines = _sentences([each for each in run.results if each.verdict is verdict])
        if lines:
            parts.append("\n".join([f"{title}:", *lines]))
    if run.results:
        parts.append("\n".join(_areas(run)))
    if failures := failures_text(run.results):
        parts.append("\n".join(failures).rstrip())
    where = printable(_where(machines))
    counts = f"{results_line(run)} {where}".rstrip()
    parts.append(f"{counts}\n{run.summary_line()}")
    return "\n\n".join(parts)


def _sentences(results: Sequence[Result]) -> list[str]:
    """One line for each reason; cases that share one are named together."""
    by_reason: dict[str, list[Result]] = {}
    for each in results:
        by_reason.setdefault(f"{each.verdict} {each.reason}", []).append(each)
    lines = []
    for group in by_reason.values():
        named = ", ".join(
            f"{each.id} on {each.device}" if each.device else each.id for each in group[:3]
        )
        more = f" and {len(group) - 3} more" if len(group) > 3 else ""
        lines.append(f"  {group[0].verdict:<13}{named}{more}")
        lines.append(f"  {'':<13}{group[0].reason}")
    return lines


def _areas(run: Run) -> list[str]:
    by_area: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    for each in run.results:
        by_area.setdefault(each.area, Counter())[each.verdict] += 1
        seconds[each.area] = seconds.get(each.area, 0.0) + each.duration_s
    kinds = [kind for kind, count in run.counts.items() if count]
    head = f"{'area':<14}" + "".join(f"{kind:>14}" for kind in kinds) + f"{'seconds':>10}"
    rows = [
        f"{area:<14}"
        + "".join(f"{counted[kind]:>14}" for kind in kinds)
        + f"{seconds[area]:>10.1f}"
        for area, counted in by_area.items()
    ]
    return [head, *rows]
