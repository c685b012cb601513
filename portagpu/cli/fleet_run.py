"""``portagpu fleet run`` and ``status``: many nodes, through Slurm, ssh or Kubernetes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.cli._common import (
    check_finite,
    check_kept,
    json_option,
    live_console,
    print_lines,
    text_stream,
    usage_errors,
    write_json,
)
from portagpu.cli._levels import LEVELS
from portagpu.cli._process import FAILED, INTERRUPTED
from portagpu.cli.fleet import program_option, program_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.reports.fleet.record import FleetRecord, Step


_WHATS: Final = ("bringup", "health", "conform", "bench", "screen", "collectives")


def _seconds(
    context: click.Context, option: click.Parameter, minutes: float | None
) -> float | None:
    checked = check_finite(context, option, minutes)
    return None if checked is None else 60 * checked


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("what", type=click.Choice(_WHATS))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
@click.option(
    "--nodes",
    metavar="LIST",
    help="Through Slurm, on these nodes, as it writes them: gpu[01-08],gpu12; or 'all' for all of "
    "the partition.",
)
@click.option(
    "--ssh",
    metavar="NODES|FILE",
    help="Through ssh, on these nodes: gpu[01-08],gpu12, or a file of such lines.",
)
@click.option("--local", type=click.IntRange(1, 1024), metavar="N", help="Here, N times: to try.")
@click.option(
    "--kubernetes",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Run nothing: print the manifest of a job on N nodes.",
)
@click.option(
    "--ssh-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For --ssh: its configuration, with jump hosts, ports and keys. Default: yours.",
)
@click.option("--image", metavar="NAME", help="For --kubernetes: the image of the pods.")
@click.option("--claim", metavar="NAME", help="For --kubernetes: the claim for the results.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    metavar="|".join(LEVELS),
    help="How much to run on each node: the option of the command.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ID",
    help="What to run on each node: the option of the command. May be repeated.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder of the record and all results. For Slurm it must be shared with the nodes; "
    "for --kubernetes it is that of the claim, and nodes with a result there get no pod.",
)
@click.option("--partition", metavar="NAME", help="Slurm's partition. Default: the cluster's.")
@click.option("--account", metavar="NAME", help="Slurm's account. Default: yours.")
@click.option(
    "--gres",
    metavar="GRES",
    help="What to request from each node, such as gpu:8, or 'none'. Default: all its GPUs.",
)
@click.option(
    "--time",
    "minutes",
    type=click.IntRange(1, 100_000),
    default=60,
    show_default=True,
    metavar="MINUTES",
    help="Time limit of each job.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    metavar="N",
    help="How many jobs may be in the queue at once.",
)
@click.option(
    "--queue-limit",
    "queue_limit_s",
    type=click.FloatRange(0, 100_000),
    callback=_seconds,
    metavar="MINUTES",
    help="Give up on a node whose job has not started after this time. Default: wait.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0, 3600),
    default=60.0,
    show_default=True,
    callback=check_finite,
    metavar="SECONDS",
    help="How long a result may take to appear in the shared folder after its job ended.",
)
@click.option(
    "--poll",
    "poll_s",
    type=click.FloatRange(0.1, 600),
    default=5.0,
    show_default=True,
    callback=check_finite,
    metavar="SECONDS",
    help="How often to ask Slurm.",
)
@click.option("--shared", is_flag=True, help="Let other jobs run on the nodes at the same time.")
@program_option
@click.option(
    "--sbatch",
    multiple=True,
    metavar="OPTION",
    help="A further option of sbatch, such as --sbatch=--reservation=acceptance; may be repeated.",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Drain nodes with a finding whose action is isolate or replace; the finding is the "
    "reason. Default: nothing is drained.",
)
@click.option(
    "--drain-with",
    default="",
    metavar="COMMAND",
    help="Without Slurm: the command that drains, called with 'drain NODE REASON' or 'resume "
    "NODE'.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    metavar="N",
    help="For collectives: each node is paired with N others, one after the other.",
)
@click.option(
    "--group",
    type=click.IntRange(3, 10_000),
    metavar="N",
    help="For collectives: then also run groups of N nodes.",
)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="For collectives: ranks of each node. Default: one for each GPU.",
)
@click.option(
    "--history",
    "place",
    metavar="FILE|URL",
    help="Also import the results into this store (portagpu matrix history).",
)
def run(
    out: Path | None,
    gres: str | None,
    shared: bool,
    program: str | None,
    place: str | None,
    **given: Any,
) -> int:
    """Run WHAT on every node, and collect the results in one folder.

    Name the nodes for Slurm (--nodes), for ssh (--ssh), or a number for this machine (--local).
    Through ssh and here, nothing is left running after Ctrl-C; Slurm's jobs go on.

    collectives runs an all_reduce on pairs of nodes in rounds, which separate a slow node from a
    slow link; the others run the command of that name on each node. screen has the same operands on
    all of them: those of the day on which the fleet run began.

    ARGUMENTs after -- go to the command on each node, such as -- --strict. Repeat the same
    command with the same folder to continue after Ctrl-C, a lost node or a lost connection. Exit
    codes: 0 if every node is PASS, 1 after FAIL or ERROR, 3 if a node has no result, 130 if
    interrupted; jobs then continue.
    """
    from portagpu.cli._fleet_text import closing_lines, code_of, slow_sentences
    from portagpu.reports.fleet.request import FleetOptions, FleetUsageError
    from portagpu.reports.fleet.run import run as run_fleet
    from portagpu.reports.fleet.slurm import UnknownNodes

    given["arguments"] = _arguments(given, given.pop("level"), given.pop("only"))
    pods, image, claim = (given.pop(each) for each in ("kubernetes", "image", "claim"))
    where = {"--nodes": given["nodes"], "--ssh": given["ssh"], "--local": given["local"]}
    chosen = [name for name, value in {**where, "--kubernetes": pods}.items() if value is not None]
    if len(chosen) != 1:
        raise click.UsageError("give one of --nodes, --ssh, --local and --kubernetes")
    if pods is not None:
        return _print_manifest(given, pods, image, claim, gres, out)
    if out is None:
        raise click.UsageError("give --out: the folder of the record and all results")
    given["nodes"] = given["nodes"] or ""
    # the other parameters are named as the fields of the options
    options = FleetOptions(
        folder=out.absolute(),
        program=program_words(program),
        gres="" if gres == "none" else gres,
        exclusive=not shared,
        **given,
    )
    with usage_errors(FleetUsageError, UnknownNodes):
        view = _view(sys.stdout)
        outcome = run_fleet(options, view)
    slow = slow_sentences(outcome.record, options.folder)
    print_lines(closing_lines(outcome.record, out, slow, view.said), sys.stdout)
    if any(step.result for step in outcome.record.steps):
        page = f"portagpu fleet report {shlex.quote(str(out))} --out fleet.html"
        print_lines([f"next: {page} shows them together"], sys.stdout)
    stored = True if place is None else _import(place, options.folder, outcome.record)
    if outcome.interrupted and not options.nodes:
        print_lines(["interrupted: nothing is left running; repeat the command"], sys.stdout)
        return INTERRUPTED
    if outcome.interrupted:
        from portagpu.reports.fleet.run import job_name

        name = job_name(outcome.record)
        print_lines([f"interrupted: jobs go on, and scancel --name={name} ends them"], sys.stdout)
        return INTERRUPTED
    return code_of(outcome.record, slow) if stored else FAILED


def _print_manifest(
    given: Mapping[str, Any],
    pods: int,
    image: str | None,
    claim: str | None,
    gres: str | None,
    out: Path | None,
) -> int:
    from portagpu.reports.fleet.kubernetes import PodOptions, manifest, nodes_with_results
    from portagpu.reports.fleet.request import FleetUsageError

    if not (image and claim and gres):
        raise click.UsageError("--kubernetes needs --image, --claim and --gres")
    with usage_errors(FleetUsageError):
        document = manifest(
            PodOptions(
                nodes=pods,
                what=given["what"],
                image=image,
                gres=gres,
                claim=claim,
                arguments=given["arguments"],
                minutes=given["minutes"],
                at_once=given["at_once"],
                done=() if out is None else nodes_with_results(out),
            )
        )
    write_json(document, "-")
    return 0


def _arguments(given: Mapping[str, Any], level: str | None, only: Sequence[str]) -> tuple[str, ...]:
    """The words that the command on each node gets."""
    chosen = [
        *(["--level", level] if level else []),
        *(w for each in only for w in ("--only", each)),
    ]
    if chosen and given["what"] in ("collectives", "health"):
        raise click.UsageError(f"{given['what']} runs as a whole: leave out --level and --only")
    return (*chosen, *given["arguments"])


def _import(place: str, folder: Path, record: FleetRecord) -> bool:
    """Import the results that were read; False where one was refused."""
    from portagpu.cli.matrix_history import open_for
    from portagpu.reports.history.files import Outcome, import_files

    files = [folder / step.result for step in record.steps if step.result is not None]
    if not files:
        return True
    refused = 0
    with open_for(place, create=True) as store:
        for each in import_files(store, files):
            if each.outcome is Outcome.REFUSED:
                refused += 1
                print_lines([f"not in the history: {each.why}"], sys.stderr)
    return not refused


def _view(stream: TextIO) -> Any:
    """Prints each step that ended; on a terminal the last line says how far all are."""
    from portagpu.cli._fleet_text import StepPace, step_line
    from portagpu.cli._heartbeat import Heartbeat
    from portagpu.reports.fleet.record import StepState
    from portagpu.reports.fleet.run import FleetProgress

    class View(FleetProgress):
        def __init__(self) -> None:
            console = live_console(stream)
            self._status: Any = None if console is None else console.status("beginning")
            self._pace = StepPace()
            self._record: FleetRecord | None = None
            self._heartbeat = Heartbeat(self._words)
            self.said: list[str] = []

        def begin(self, record: FleetRecord) -> None:
            (self._heartbeat if self._status is None else self._status).start()
            self._show(record)

        def changed(self, step: Step, record: FleetRecord) -> None:
            self._pace.changed(step)
            if step.state in (StepState.DONE, StepState.LOST):
                self.said.append(step_line(step))
                self._say(self.said[-1], stream)
            self._show(record)

        def note(self, text: str) -> None:
            self._say(f"portagpu: {text}", sys.stderr)

        def end(self) -> None:
            (self._heartbeat if self._status is None else self._status).stop()

        def _say(self, line: str, to: TextIO) -> None:
            # the last line of the terminal is the status
            if self._status is not None:
                self._status.stop()
            print_lines([line], to)
            if self._status is not None:
                self._status.start()

        def _words(self) -> str:
            return "" if self._record is None else self._pace.words(self._record)

        def _show(self, record: FleetRecord) -> None:
            self._record = record
            if self._status is not None:
                self._status.update(self._words())

    return View()


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def status(folder: Path, json_to: str | None) -> int:
    """Show how far the fleet run in FOLDER is, from its record alone, without asking Slurm.

    Exit codes: 0 if every node is PASS, 1 after FAIL or ERROR, 3 if a node has no result yet.
    """
    from portagpu.base.documents import encode
    from portagpu.base.units import count
    from portagpu.cli._fleet_text import closing_lines, code_of, slow_sentences
    from portagpu.reports.fleet.record import FILE, read_record

    check_kept([folder / FILE], json_to)
    record = read_record(folder)
    write_json(encode(record), json_to)
    words = " ".join([record.what, *record.arguments])
    head = f"{words} on {count(len(record.nodes), 'node')}, begun {record.started}"
    slow = slow_sentences(record, folder)
    print_lines([head, *closing_lines(record, folder, slow)], text_stream(json_to))
    return code_of(record, slow)
