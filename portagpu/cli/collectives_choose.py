"""``portagpu collectives choose``: algorithm, protocol, time and bucket sizes, without a device."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click

from portagpu.base.text import excerpt
from portagpu.cli._common import (
    SizeType,
    check_outputs,
    complete_target,
    json_option,
    print_lines,
    terminal,
    text_stream,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from portagpu.devices.collectives.alpha_beta import Fit
    from portagpu.devices.collectives.buckets import BucketChoice, Plan
    from portagpu.devices.collectives.choice import Choice
    from portagpu.devices.collectives.cost import CostModel, Graph, Hardware
    from portagpu.devices.collectives.tuning import Profile

SCHEMA: Final = "portagpu.choice/1"
_MAX_BYTES: Final = 64 << 20
"""Of a table or a list of parameters: larger files are something else."""
_T = TypeVar("_T")
_VERSION: Final = re.compile(r"\d{1,9}\.\d{1,9}(?:[.+~-][\w.+~-]{0,60})?$")
_GRAPH: Final = re.compile(r"(\w+)=(\d{1,3})x(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?")
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
@click.option(
    "--target",
    metavar="ID",
    shell_complete=complete_target,
    help='The GPU; "portagpu targets" lists them.',
)
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
def choose(
    operation: str,
    size_bytes: int | None,
    ranks: int,
    nodes: int,
    target: str | None,
    nics: int | None,
    nic_gbs: float | None,
    graphs: tuple[str, ...],
    algorithms: tuple[str, ...],
    options: tuple[str, ...],
    library_version: str | None,
    measured: str | None,
    profile: str | None,
    dtype: str,
    params: str | None,
    backward_ms: float | None,
    json_to: str | None,
) -> None:
    """Say which algorithm a collective would run, how long it would take, and why.

    From the library's cost model, or from measured times. No device is opened. With --params it
    also chooses bucket_cap_mb for DDP and the size of groups for FSDP.
    """
    from portagpu.base.errors import Unsupported
    from portagpu.devices.collectives.choice import choose as choose_one
    from portagpu.devices.collectives.choice import tuned_choice
    from portagpu.devices.collectives.cost import Question

    check_outputs(json_to)
    if (params is None) != (backward_ms is None):
        raise click.UsageError("--params and --backward-ms need each other: give both or neither")
    if size_bytes is None and params is None:
        raise click.UsageError("give the size of the buffer, such as --bytes 64M")
    if measured is not None and profile is not None:
        raise click.UsageError("give either --measured or --profile, not both")
    if dtype and profile is None:
        raise click.UsageError(
            "--dtype needs --profile: the times of a cost model do not depend on it"
        )
    if target is None and measured is None and profile is None:
        raise click.UsageError("name the GPU with --target, or give measured times with --measured")
    if profile is None and library_version is not None and not _VERSION.match(library_version):
        raise click.UsageError(
            f"--library-version must be a version such as 2.27.3, not {excerpt(library_version)!r}"
        )
    model_s = {
        "--graph": graphs,
        "--algorithm": algorithms,
        "--set": options,
        "--nics": nics,
        "--nic-gbs": nic_gbs,
    }
    idle = [name for name, value in model_s.items() if value]
    if idle and profile is not None:
        raise click.UsageError(f"--profile has the answer already: leave out {' and '.join(idle)}")
    if idle and target is None:
        raise click.UsageError(
            f"{' and '.join(idle)} only applies to a cost model: give --target too"
        )
    hardware, model = (None, None) if target is None else _model_of(target)
    tuned = None if profile is None else _profile(profile, target, library_version)
    given = _by_name("--graph", map(_graph, graphs))
    settings = _by_name("--set", map(_setting, options))
    fits = _fits(measured, operation, ranks) if measured is not None else None

    def answer(asked: str, asked_bytes: int) -> Choice:
        question = Question(
            operation=asked,
            size_bytes=asked_bytes,
            ranks=ranks,
            nodes=nodes,
            hardware=hardware,
            nics=nics,
            nic_gbs=nic_gbs,
            graphs=given,
            algorithms=algorithms,
            options=settings,
            dtype=dtype,
        )
        if tuned is not None:
            return tuned_choice(question, tuned)
        fit = None
        if fits is not None:
            fit = fits.get(asked)
            if fit is None:
                raise ValueError(
                    f"{measured} has no table of {asked} on {ranks} ranks: it has "
                    f"{', '.join(sorted(fits)) or 'no table of this many'}"
                )
        return choose_one(question, model, fit=fit, library_version=library_version)

    try:
        found = answer(operation, size_bytes) if size_bytes is not None else None
        buckets: list[BucketChoice] = []
        notes: list[str] = []
        basis = "" if found is None else str(found.basis)
        if params is not None and backward_ms is not None:
            sizes = parameter_sizes(params)
            overlap = tuned is None or not tuned.machine.shared
            buckets, notes, basis = _buckets(sizes, 1e3 * backward_ms, answer, overlap=overlap)
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
            "alternatives": [asdict(each) for each in found.alternatives],
            "basis": asdict(found.basis),
            "own_answer": found.own_answer,
            "inputs": [{**asdict(each), "estimated": each.estimated} for each in found.inputs],
            "shots": None if found.shots is None else asdict(found.shots),
            "known_error": None
            if found.known_error is None
            else {**asdict(found.known_error), "wrong": found.known_error.wrong},
            "remarks": list(found.remarks),
        }
    return {
        "schema": SCHEMA,
        "choice": answer,
        "buckets": [
            {**asdict(each), "speedup": each.speedup, "basis": buckets_basis} for each in buckets
        ],
    }


def _model_of(target: str) -> tuple[Hardware, CostModel | None]:
    from portagpu.devices.collectives.cost import Hardware
    from portagpu.devices.discovery import cost_model_for
    from portagpu.facts.targets import load_target

    found = load_target(target)
    return Hardware.of_target(found), cost_model_for(found.vendor)


def _by_name(option: str, given: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for name, value in given:
        if name in found:
            raise click.UsageError(f"{option} has {name} twice: give it once")
        found[name] = value
    return found


def _graph(text: str) -> tuple[str, Graph]:
    from portagpu.devices.collectives.cost import Graph

    parts = _GRAPH.fullmatch(text)
    if parts is None:
        raise click.UsageError(
            f"--graph must be ALGORITHM=CHANNELSxGB/S, such as Ring=12x30, not {excerpt(text)!r}"
        )
    name, channels, intra, inter = parts.groups()
    graph = Graph(int(channels), float(intra), float(inter or intra))
    if not (graph.channels and graph.intra_gbs and graph.inter_gbs):
        raise click.UsageError(
            f"--graph {excerpt(text)} has no bandwidth: its numbers must be above 0"
        )
    return name, graph


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(
            f"--set must be NAME=VALUE, such as cpu=other, not {excerpt(text)!r}"
        )
    return name, value


def _read(path: str) -> str:
    from portagpu.base.files import read_bounded

    try:
        return read_bounded(path, _MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _profile(path: str, target: str | None, library_version: str | None) -> Profile:
    """The profile in a file, which has to be of what else the options name."""
    from portagpu.devices.collectives.tuning import read_profile

    try:
        found = read_profile(path)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if target is not None and target != found.machine.target:
        raise click.UsageError(
            f"profile of another machine: {path} was measured on {found.machine.target or 'none'}, "
            f"and --target is {target}"
        )
    if library_version is not None and library_version != found.stack.version:
        raise click.UsageError(
            f"profile of another version: {path} was measured with {found.stack}, and "
            f"--library-version is {library_version}"
        )
    return found


def _fits(path: str, operation: str, ranks: int) -> dict[str, Fit]:
    """The line of every operation in the tables of that many ranks.

    A table that names neither its program nor its ranks is taken for what was asked.
    """
    from portagpu.devices.collectives.alpha_beta import fit_line
    from portagpu.facts.nccl_tests.tables import read_tables
    from portagpu.facts.readings.model import FormatError

    try:
        tables = read_tables(_read(path))
    except FormatError as error:
        raise click.UsageError(f"{path}: {error}") from error
    points: dict[str, list[tuple[int, float]]] = {}
    for table in tables:
        if table.ranks not in (None, ranks):
            continue
        for row in table.rows:
            if row.timings and row.size_bytes > 0:
                timing = row.timings[0][1]
                of = points.setdefault(table.operation or operation, [])
                of.append((row.size_bytes, timing.time_us))
    if not points:
        seen = sorted({f"{each.ranks} ranks" for each in tables})
        raise click.UsageError(f"{path} has no table of {ranks} ranks: it has {', '.join(seen)}")
    try:
        return {name: fit_line(name, ranks, measured) for name, measured in points.items()}
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from error


def parameter_sizes(path: str) -> list[int]:
    """The bytes of every parameter in a file; raises UsageError and ValueError."""
    import json

    text = _read(path)
    try:
        found = json.loads(text) if text.lstrip()[:1] == "[" else [int(x) for x in text.split()]
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a list of bytes: write a JSON list of numbers, or one number a line"
        ) from error
    if not found or not all(type(each) is int and each > 0 for each in found):
        raise ValueError(f"{path} is not a list of bytes: each must be a whole number above 0")
    return list(found)


def _buckets(
    sizes: list[int],
    backward_us: float,
    answer: Callable[[str, int], Choice],
    *,
    overlap: bool,
) -> tuple[list[BucketChoice], list[str], str]:
    """The choices for DDP and FSDP, why one is missing, and what the times are based on."""
    from portagpu.devices.collectives.buckets import choose_ddp, choose_fsdp
    from portagpu.devices.collectives.tuning import DEFAULT

    bases: dict[str, None] = {}

    @cache  # the layers of a model have few different sizes
    def time(operation: str, size_bytes: int) -> float:
        found = answer(operation, size_bytes)
        bases[str(found.basis)] = None
        # DDP and FSDP make the library's own call, which a profile has next to its choice
        plain = next((each for each in found.alternatives if each.algorithm == DEFAULT), found.best)
        return plain.time_us

    found, notes = [], []
    for kind, chooser in (("DDP", choose_ddp), ("FSDP", choose_fsdp)):
        try:
            found.append(chooser(sizes, backward_us, time, overlap=overlap))
        except ValueError as error:
            notes.append(f"no buckets for {kind}: {error}")
    if not found:
        raise ValueError(notes[0])
    return found, notes, "; ".join(bases)


def _show(found: Choice, stream: TextIO) -> None:
    from portagpu.base.units import number, size
    from portagpu.cli._tables import print_table

    asked, best = found.question, found.best
    nodes = f" on {asked.nodes} nodes" if asked.nodes > 1 else ""
    chosen = f"{best}: " if str(best) else ""
    answer = f"{number(best.time_us)} µs, busbw {number(best.busbw_gbs)} GB/s"
    whole = f"{asked.operation} of {size(asked.size_bytes)} over {asked.ranks} ranks{nodes}"
    lines = [
        f"{whole}: {chosen}{answer}",
        f"basis: {found.basis}",
        f"library's own answer: {found.own_answer}",
        *found.remarks,
    ]
    if found.shots is not None:
        shots = found.shots
        lines.append(
            f"{shots.name}: {shots.kernel}, {number(shots.time_us)} µs by the model, with "
            f"{shots.condition}"
        )
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
