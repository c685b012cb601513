"""``portagpu health``: a node judged once, for people and for schedulers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from portagpu.cli._common import (
    STDOUT,
    check_finite,
    expect_devices_option,
    folder_option,
    ocp_place,
    print_lines,
    replay_option,
    run_json_option,
    strict_option,
    target_option,
    text_stream,
)
from portagpu.cli._process import NOT_JUDGED, drop_output

if TYPE_CHECKING:
    from portagpu.checks.health.options import HealthOptions
    from portagpu.checks.health.scheduler import Answer, Hook

_GATES = ("prolog", "epilog", "healthcheck", "npd")
_ACTIONS = ("none", "monitor", "reset", "isolate", "replace")


def _check_since(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None or value in ("boot", "all"):
        return value
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise click.BadParameter(f'{value!r} is not "boot", "all" or a number of seconds')
    return value


@click.command()
@target_option("Fail unless this machine is that target, and judge by its facts.")
@expect_devices_option("Fail unless there are exactly N devices.")
@replay_option("Judge a recording instead of this machine.")
@click.option(
    "--log",
    metavar="FILE",
    help="Read the kernel's log from this file, at most its last 16 MiB. Default: the journal.",
)
@click.option(
    "--since",
    metavar="WHEN",
    callback=_check_since,
    help='Only events of the log since then: "boot" (default), "all", or a number of seconds ago.',
)
@strict_option
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0.5, 3600),
    callback=check_finite,
    metavar="SECONDS",
    help="End within this time, whatever hangs; the rest is INCONCLUSIVE. Default: 60 s; of a "
    "gate: prolog and epilog 8 s, healthcheck 50 s, npd 4 s.",
)
@click.option(
    "--gate",
    type=click.Choice(_GATES),
    help="Answer to a scheduler: one line and its exit codes (docs/health.md). No Slurm command "
    "is called.",
)
@click.option(
    "--fail-on",
    type=click.Choice(_ACTIONS[1:]),
    help="With --gate: fail where a finding asks for this action or a graver one. Default: "
    "isolate.",
)
@click.option(
    "--fail-on-unknown",
    is_flag=True,
    help="With --gate: exit with 3 if something was not judged and no finding fails the node. npd "
    "ends with 2 there, with or without this option.",
)
@click.option(
    "--reason-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --gate: leave the reason in this file. Default as root: /run/portagpu/health.txt.",
)
@folder_option
@run_json_option
def health(
    target: str | None,
    expect_devices: int | None,
    replay: tuple[str, ...],
    log: str | None,
    since: str | None,
    strict: bool,
    limit_s: float | None,
    gate: str | None,
    fail_on: str | None,
    fail_on_unknown: bool,
    reason_file: Path | None,
    out: Path | None,
    json_to: str | None,
) -> int:
    """Judge this node once: GPUs, their links, the host and the kernel's log.

    Nothing runs on a device, and torch is not used. Every finding has an action: none, monitor,
    reset, isolate or replace, with its source.

    Exit codes: 0 for PASS, 1 for FAIL or ERROR, 2 for wrong usage, 3 if something was not judged,
    130 if interrupted. With --gate: 0 if the node may be used, 1 if a finding asks for the action
    of --fail-on or a graver one. If there is none and something was not judged, npd ends with 2.
    """
    if gate is None and (fail_on or fail_on_unknown or reason_file):
        raise click.UsageError("--fail-on, --fail-on-unknown and --reason-file need --gate")
    if gate is not None and STDOUT in (json_to, ocp_place()):
        raise click.UsageError("--gate prints its own line: give --json and --ocp a file, not '-'")
    if replay and since not in (None, "boot", "all"):
        raise click.UsageError("--since SECONDS counts from now: leave it out with --replay")
    if log is not None and not Path(log).exists():
        raise click.UsageError(f"--log {log}: there is no such file")
    from portagpu.checks.health import scheduler
    from portagpu.checks.health.options import LIMIT_S, HealthOptions

    asked = scheduler.Hook(gate) if gate is not None else None
    options = HealthOptions(
        target=target,
        expect_devices=expect_devices,
        # the child that reads them works in another folder
        replay=[str(Path(path).absolute()) for path in replay],
        log=str(Path(log).absolute()) if log is not None else None,
        since=since,
        strict=strict,
        limit_s=limit_s or (LIMIT_S if asked is None else scheduler.LIMIT_S[asked]),
        tools=asked is None or asked in scheduler.ASKS_TOOLS,
        command=["portagpu", *sys.argv[1:]],
    )
    options.load_target()
    if asked is None:
        return _judge(options, out, json_to)
    try:
        answer = _answer(options, fail_on, out, json_to)
    except Exception as error:  # noqa: BLE001 - a judgement that breaks says nothing of the node
        answer = scheduler.broken(error)
        from portagpu.cli._error_document import write_error

        write_error(NOT_JUDGED, answer.reason)
    _tell(answer, asked, reason_file)
    return answer.exit_code(asked, fail_on_unknown=fail_on_unknown)


def _judge(options: HealthOptions, out: Path | None, json_to: str | None) -> int:
    from portagpu.checks.health.watchdog import health_within
    from portagpu.cli._health_text import health_text, summary
    from portagpu.cli._run_output import Files, deliver

    files = Files(json_to, folder=out)
    files.check()
    run = health_within(options)
    written = deliver(run, files, [*health_text(run), "", summary(run)])
    print_lines([f"wrote {path}" for path in written], text_stream(json_to))
    return run.exit_code


def _answer(
    options: HealthOptions, fail_on: str | None, out: Path | None, json_to: str | None
) -> Answer:
    from portagpu.checks.health import scheduler
    from portagpu.checks.health.watchdog import health_within
    from portagpu.runs.results.advice import Action

    run = health_within(options)
    if out is not None or json_to is not None or ocp_place() is not None:
        from portagpu.cli._run_output import Files

        try:
            Files(json_to, folder=out).write(run)
        except Exception as error:  # noqa: BLE001 - a full disk is not a fault of the devices
            _print(f"portagpu health: {error}", sys.stderr)
    return scheduler.answer(run, Action(fail_on) if fail_on else scheduler.FAIL_ON)


def _tell(answer: Answer, hook: Hook, reason_file: Path | None) -> None:
    """Print the line where ``hook`` reads it, and leave the reason where an operator does."""
    from portagpu.checks.health import scheduler

    if hook is scheduler.Hook.NPD:
        _print(scheduler.npd_line(answer), sys.stdout)
        return
    # a HealthCheckProgram puts this line into the reason of the drained node
    stream = sys.stdout if hook is scheduler.Hook.HEALTHCHECK else sys.stderr
    _print(f"portagpu health: {answer.reason}", stream)
    for problem in scheduler.inform_operator(answer, hook, reason_file):
        _print(f"portagpu health: {problem}", sys.stderr)


def _print(line: str, stream: IO[str]) -> None:
    """Print ``line``; a stream that cannot be written is not a fault of the node."""
    try:
        print_lines([line], stream)
    except OSError:
        drop_output(stream)
