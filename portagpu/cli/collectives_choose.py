"""``portagpu collectives choose``: algorithm, protocol, time and bucket sizes, without a device."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from portagpu.cli._choice_inputs import Answers, Asked
from portagpu.cli._common import (
    SizeType,
    check_outputs,
    json_option,
    print_lines,
    target_option,
    terminal,
    text_stream,
    with_options,
    write_json,
)

if TYPE_CHECKING:
    from portagpu.devices.collectives.buckets import BucketChoice, Plan
    from portagpu.devices.collectives.choice import Choice

SCHEMA: Final = "portagpu.choice/1"
_SHOWN: Final = 6
"""Alternatives and plans in the text; JSON has all."""


@click.command()
@click.option(
    "--op",
    "operation",
    default="all_reduce",
    show_default=True,
    metavar="NAME",
    help="The collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce.",
)
@click.option(
    "--bytes",
    "size_bytes",
    type=SizeType(),
    metavar="SIZE",
    help="The size of the whole buffer: 1048576, 64M, 1G. Prefixes are binary.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=2),
    required=True,
    metavar="N",
    help="Number of ranks, one on each GPU.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="The number of machines that the ranks are spread over.",
)
@target_option('The GPU; "portagpu targets" lists them.')
@click.option(
    "--nics",
    type=click.IntRange(min=1),
    metavar="N",
    help="Network ports of a machine. Default: one for each of its ranks.",
)
@click.option(
    "--nic-gbs",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB/S",
    help="The bandwidth of a port in one direction: 50 for 400 Gb/s.",
)
@click.option(
    "--graph",
    "graphs",
    multiple=True,
    metavar="ALGORITHM=NxGB/S[/GB/S]",
    help="The channels of the library's own search, within[/between] nodes, from its log "
    '("nChannels 12, bw 30.0/30.0" is Ring=12x30/30). Default: estimated.',
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="NAME",
    help="Choose among these only; may be repeated.",
)
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the model, such as cpu=other; may be repeated.",
)
@click.option(
    "--library-version",
    metavar="VERSION",
    help="The version of the library that will run. Default: that of the model's constants.",
)
@click.option(
    "--measured",
    metavar="FILE",
    help="Take times from this table of a test program (all_reduce_perf and so on; text or JSON).",
)
@click.option(
    "--profile",
    metavar="FILE",
    help='Take choices and times from this profile of "portagpu collectives tune".',
)
@click.option(
    "--dtype",
    default="",
    metavar="DTYPE",
    help="Which dtype of the profile to answer for, by torch's name, such as bfloat16.",
)
@click.option(
    "--params",
    metavar="FILE",
    help="Also choose bucket sizes: the bytes of every parameter in the order of "
    "model.parameters(), as a JSON list or one number a line.",
)
@click.option(
    "--backward-ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MS",
    help="The time of a backward pass without communication, for --params.",
)
@json_option
@with_options(Asked)
def choose(asked: Asked, json_to: str | None) -> None:
    """Say which algorithm a collective would run, how long it would take, and why.

    From the library's cost model, or from measured times. No device is opened. With --params it
    also chooses bucket_cap_mb for DDP and the size of groups for FSDP.
    """
    from portagpu.base.errors import Unsupported

    check_outputs(json_to)
    asked.check()
    answers = Answers(asked)
    found, basis = None, ""
    buckets: list[BucketChoice] = []
    notes: list[str] = []
    try:
        if asked.size_bytes is not None:
            found = answers.answer(asked.operation, asked.size_bytes)
            basis = str(found.basis)
        if asked.params is not None and asked.backward_ms is not None:
            buckets, notes, basis = answers.buckets(asked.params, asked.backward_ms)
    except (Unsupported, ValueError) as error:
        raise click.UsageError(str(error)) from error
    stream = text_stream(json_to)
    if found is not None:
        _show(found, stream)
    _show_buckets(buckets, notes, basis, stream)
    write_json(document(found, buckets, basis), json_to)


def document(
    found: Choice | None, buckets: list[BucketChoice], buckets_basis: str
) -> dict[str, Any]:
    """The document that ``--json`` writes. Times are in us, bandwidths in GB/s, sizes in bytes."""
    answer = None
    if found is not None:
        answer = {
            "question": asdict(found.question),
            "best": asdict(found.best),
            "expected_us": found.expected_us,
            "alternatives": [asdict(each) for each in found.alternatives],
            "basis": asdict(found.basis),
            "own_answer": found.own_answer,
            "inputs": [{**asdict(each), "estimated": each.estimated} for each in found.inputs],
            "shots": None if found.shots is None else asdict(found.shots),
            "known_error": None
            if found.known_error is None
            else {**asdict(found.known_error), "wrong": found.known_error.wrong},
            "interval": None if found.interval is None else asdict(found.interval),
            "remarks": list(found.remarks),
            "other_ways": [asdict(each) for each in found.other_ways],
        }
    return {
        "schema": SCHEMA,
        "choice": answer,
        "buckets": [
            {**asdict(each), "speedup": each.speedup, "basis": buckets_basis} for each in buckets
        ],
    }


def _show(found: Choice, stream: TextIO) -> None:
    from portagpu.base.units import number, size
    from portagpu.cli._tables import print_table

    asked, best = found.question, found.best
    nodes = f" on {asked.nodes} nodes" if asked.nodes > 1 else ""
    chosen = f"{best}: " if str(best) else ""
    answer = f"{number(best.time_us)} µs, busbw {number(best.busbw_gbs)} GB/s"
    if found.interval is not None and found.interval.compared:
        likely = found.interval.likely_us
        busbw = best.busbw_gbs * best.time_us / likely
        answer = (
            f"about {number(likely)} µs, busbw {number(busbw)} GB/s; {number(best.time_us)} µs by "
            "the library's model"
        )
    whole = f"{asked.operation} of {size(asked.size_bytes)} over {asked.ranks} ranks{nodes}"
    lines = [
        f"{whole}: {chosen}{answer}",
        f"basis: {found.basis}{f' ({found.basis.source})' if found.basis.source else ''}",
        f"library's own answer: {found.own_answer}",
        *found.remarks,
    ]
    if found.shots is not None:
        shots = found.shots
        lines.append(
            f"{shots.name}: {shots.kernel}, {number(shots.time_us)} µs by the model, with "
            f"{shots.condition}"
        )
    lines += [str(each) for each in found.other_ways if each.may_run]
    print_lines(lines, stream)
    rows = [
        (each.algorithm, each.protocol, number(each.time_us), number(each.busbw_gbs))
        for each in (best, *found.alternatives[:_SHOWN])
    ]
    if found.alternatives:
        click.echo("", file=stream)
        head = ("algorithm", "protocol", "time µs", "busbw GB/s")
        print_table(stream, terminal(stream), head, rows, {"time µs", "busbw GB/s"}, bold={0})
    if found.inputs:
        click.echo("", file=stream)
        inputs = [(each.name, each.value, each.how) for each in found.inputs]
        print_table(stream, terminal(stream), ("input", "value", "from"), inputs)


def _show_buckets(
    buckets: list[BucketChoice], notes: list[str], basis: str, stream: TextIO
) -> None:
    for each in buckets:
        print_lines(bucket_lines(each), stream)
    if buckets:
        print_lines([*notes, f"basis of the bucket sizes: {basis}"], stream)


def bucket_lines(choice: BucketChoice) -> list[str]:
    """An empty line, and what was chosen."""
    from portagpu.base.units import number

    best, default = choice.best, choice.default
    if choice.kind == "ddp":
        cap = "None, torch's default" if best.cap_mib is None else str(best.cap_mib)
        head = f"DDP: bucket_cap_mb = {cap}"
    else:
        head = f"FSDP: groups of parameters (fully_shard) of {best.cap_mib} MiB"
    compared = f"25 MiB: {_plan_words(default)}; {number(choice.speedup, 3)} times as fast"
    return ["", f"{head}: {_plan_words(best)}; {compared}"]


def _plan_words(plan: Plan) -> str:
    from portagpu.base.units import number

    count = len(plan.buckets)
    return (
        f"step {number(plan.step_us / 1e3)} ms ({number(plan.exposed_us / 1e3)} ms not hidden, "
        f"{count} bucket{'' if count == 1 else 's'})"
    )
