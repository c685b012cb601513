"""``portagpu profile -- CMD``: run a command under a profiler, and say what was captured."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portagpu.base.text import did_you_mean, printable
from portagpu.cli._common import (
    STDOUT,
    check_finite,
    check_outputs,
    ocp_place,
    print_lines,
    results_line,
    run_json_option,
)
from portagpu.facts.captures.profilers import RECORDED, Recorded, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.runs.results.run import Result, Run
    from portagpu.traces.profile import Plan


class _RecordType(click.ParamType):  # type: ignore[type-arg]
    """Words of RECORDED with commas between."""

    name = "what"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[Recorded]:
        """The words; raises BadParameter for any other."""
        if isinstance(value, frozenset):
            return value
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        for word in words:
            if word not in RECORDED:
                hint = did_you_mean(word, RECORDED, f"there are {', '.join(RECORDED)}")
                self.fail(f"{word!r} cannot be recorded: {hint}", param, ctx)
        return frozenset(each for each in RECORDED if each in words)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--out",
    "--output",
    "folder",
    metavar="FOLDER",
    default="profile",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the captures.",
)
@click.option("--with", "tool", metavar="NAME", help="The profiler: nsys, rocprofv3 or torch.")
@click.option(
    "--record",
    metavar="WHAT,...",
    type=_RecordType(),
    default=frozenset(RECORDED),
    help=f"What to record. Default: {','.join(RECORDED)}.",
)
@click.option("--region", is_flag=True, help="Record only inside pg.region, not the whole program.")
@click.option(
    "--delay",
    "delay_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    callback=check_finite,
    help="Start to record this long after the start of CMD.",
)
@click.option(
    "--duration",
    "duration_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    callback=check_finite,
    help="Record for this long; CMD continues.",
)
@click.option("--print", "only_print", is_flag=True, help="Show what would run, and run nothing.")
@click.option(
    "--tool-version",
    metavar="VERSION",
    help="With --print and --with: the version of a tool that is not installed here.",
)
@run_json_option
@click.argument("words", nargs=-1, metavar="-- CMD [ARGS ...]", type=click.UNPROCESSED)
def profile(
    folder: Path,
    tool: str | None,
    only_print: bool,
    tool_version: str | None,
    json_to: str | None,
    words: tuple[str, ...],
    **asked: Any,
) -> int:
    """Run CMD under a profiler, open what it wrote, and say what was captured.

    The profiler is nsys, rocprofv3 or torch's own, by the default backend's vendor and what is
    installed. Each rank has captures of its own. A rank without kernels (on a CPU: operators) is a
    failure, with the reason. Exit codes: 0 for PASS, 1 for FAIL or ERROR (also where CMD fails), 2
    for wrong usage, 3 if nothing was judged, 130 if interrupted.
    """
    from portagpu.traces.profile import ProfileOptions, make_plan
    from portagpu.traces.profile import profile as engine

    options = ProfileOptions(
        words=words,
        folder=folder,
        tool=tool,
        tool_version=tool_version,
        # standard output is the document's
        stdout=2 if STDOUT in (json_to, ocp_place()) else None,
        command=["portagpu", *sys.argv[1:]],
        **asked,
    )
    check_outputs(json_to, ocp_place())
    try:
        plan = make_plan(options)
        if only_print:
            for line in _plan_lines(plan):
                # unchanged but for comments, which have to stay on their lines
                click.echo(printable(line) if line.startswith("#") else os.fsencode(line))
            return 0
        from portagpu.cli._run_output import Files, View, deliver

        class Begun(View):
            def begin(self, run: Run) -> None:
                print_lines([_begin_line(plan)], sys.stderr)
                super().begin(run)

        files = Files(json_to)
        run = engine(options, Begun(files), plan=plan)
    except Refused as error:
        raise click.UsageError(str(error)) from error
    deliver(run, files, list(_lines(run, plan)))
    return run.exit_code


def _begin_line(plan: Plan) -> str:
    choice = plan.choice
    name = "torch's profiler" if choice.profiler.name == "torch" else choice.profiler.name
    version = f" {choice.tool.version}" if choice.tool.version else ""
    remark = f" ({choice.remark})" if choice.remark else ""
    return f"portagpu: {name}{version} records to {plan.request.folder}{remark}"


def _plan_lines(plan: Plan) -> Iterator[str]:
    """The command as a shell takes it, after the files and with the environment that it needs."""
    folder = plan.request.folder
    for name, text in plan.launch.scripts.items():
        yield f"# {folder / name}"
        yield from (f"#   {line}" for line in text.splitlines())
    changes = [f"{name}={value}" for name, value in plan.environment().items()]
    yield shlex.join(["env", *changes, *plan.launch.argv])
    for step in plan.launch.steps:
        file = f"FILE{Path(step.inputs).suffix.replace('*', '')}"
        yield f"# afterwards, for each {folder / step.inputs}:"
        yield f"#   {shlex.join(step.command(file, f'FILE{step.suffix}'))}"


def _lines(run: Run, plan: Plan) -> Iterator[str]:
    from portagpu.traces.profile.judge import counts_in_words

    for result in run.results:
        yield _line(result, counts_in_words(result.extra.get("counts", {})))
        for key, what in (("messages", "says"), ("problems", "problem")):
            for text in result.extra.get(key, ()):
                yield f"    {what}: {text}"
        for name in result.extra.get("files", ()):
            yield f"    {plan.request.folder / name}"
    yield results_line(run)
    yield run.summary_line()


def _line(result: Result, counts: str) -> str:
    from portagpu.runs.results.wording import without_device

    where = f" {result.device}" if result.device else ""
    name = result.id.rpartition("/")[2]
    text = without_device(result) if result.reason else counts
    return f"{result.verdict} {name}{where}{': ' if text else ''}{text}"
