"""The output of ``portagpu plan``: text, JSON, and the user's own module in torch's tracker."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from portagpu.base.text import error_line
from portagpu.base.units import count, number, size
from portagpu.cli._common import print_lines, terminal
from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from portagpu.train.planning import Model, Plan, Plans, Recipe, Rejected, Tracked


def show_targets(found: Sequence[Plans], stream: TextIO) -> None:
    """Print the first plan of each cluster side by side."""
    head = ("target", "GPUs", "layout", "micro-batch", "recompute", "memory", "fit", "step s", "of")
    rows = [
        (
            plans.cluster.target.id,
            str(plans.cluster.world),
            *(_row(plans.best)[:6] if plans.ranked else ("nothing fits", "", "", "", "", "")),
            size(plans.cluster.memory),
        )
        for plans in found
    ]
    print_table(stream, terminal(stream), head, rows, {"GPUs", "micro-batch", "step s"})
    nowhere = [f"{each.cluster.target.id}: {each.nothing}" for each in found if not each.ranked]
    print_lines([*nowhere, ""], stream)


def show_plans(model: Model, plans: Plans, show: int, stream: TextIO) -> None:
    """Print the first ``show`` plans of one cluster."""
    on = plans.cluster
    what = f"{model.name}: {model.parameters:,} parameters"
    where = f"{on.world} x {on.target.id}, {size(on.memory)} each, {count(on.nodes, 'machine')}"
    print_lines([f"{what}; {where}, tp within {on.domain}", *on.remarks], stream)
    if plans.ranked:
        head: tuple[str, ...] = (
            "layout",
            "micro-batch",
            "recompute",
            "memory",
            "fit",
            "step s",
            "no overlap",
            "why",
        )
        rows = [_row(each) for each in plans.ranked[:show]]
        if plans.utilisation is not None:
            head = (*head[:-1], "as published", head[-1])
            rows = [
                (*row[:-1], _between(each), row[-1])
                for row, each in zip(rows, plans.ranked, strict=False)
            ]
        click.echo("", file=stream)
        print_table(
            stream, terminal(stream), head, rows, {"micro-batch", "step s", "no overlap"}, {0}
        )
        _show_terms(plans.best, stream)
        notes = [f"times of collectives: {'; '.join(plans.bases)}"] if plans.bases else []
        if plans.best.timing is not None and plans.efficiency is None:
            notes.append(
                '"step s" takes products to reach the dense peak, so it is a lower bound: give the '
                "share that you have measured as --efficiency"
            )
            notes += _published(plans)
        print_lines([*notes, *plans.best.memory.remarks], stream)
    counted = Counter(each.rule for each in plans.rejected)
    first = {each.rule: each for each in reversed(plans.rejected)}
    rejected = [
        f"{times} rejected by {rule}: {first[rule].why}" for rule, times in counted.most_common()
    ]
    print_lines(rejected, stream)
    click.echo("", file=stream)


def _between(found: Plan) -> str:
    times = found.between_s
    return "?" if times is None else f"{number(times[0], 2)} to {number(times[1], 2)}"


def _published(plans: Plans) -> list[str]:
    """What the column "as published" is based on."""
    from portagpu.train.planning.utilisation import WIDER

    if plans.utilisation is None:
        return ["no training on this product is published here, so there is no other time"]
    sources = ", ".join(plans.utilisation.sources)
    shares = f"{plans.utilisation}, and {WIDER:g} times less and more"
    return [f'"as published" takes {shares}: so 9 of 10 runs of other sources hold ({sources})']


def _row(found: Plan) -> tuple[str, ...]:
    timing = found.timing
    return (
        str(found.layout),
        str(found.recipe.micro_batch),
        found.recipe.recompute,
        size(found.memory.expected),
        str(found.fit),
        "?" if timing is None else number(timing.step_s),
        "?" if timing is None else number(timing.no_overlap_s),
        found.why,
    )


def _show_terms(best: Plan, stream: TextIO) -> None:
    memory = best.memory
    rows = [
        (
            each.name,
            size(each.least),
            size(each.expected),
            size(each.most),
            each.formula,
            each.source,
        )
        for each in memory.terms
    ]
    rows += [
        (f"on the host: {each.name}", "", size(each.expected), "", each.formula, each.source)
        for each in memory.host
    ]
    peak = f"peak, {memory.phase}"
    rows.append((peak, size(memory.least), size(memory.expected), size(memory.most), "", ""))
    head = ("memory of the first plan", "min", "expected", "max", "formula", "source")
    click.echo("", file=stream)
    print_table(stream, terminal(stream), head, rows, {"min", "expected", "max"}, {len(rows) - 1})


def plans_document(plans: Plans) -> dict[str, Any]:
    """All plans of one cluster, and all that were rejected."""
    on = plans.cluster
    return {
        "target": on.target.id,
        "nodes": on.nodes,
        "ranks": on.world,
        "domain": on.domain,
        "memory_bytes": on.memory,
        "nic_gbs": on.nic_gbs,
        "batch": plans.batch,
        "remarks": list(on.remarks),
        "bases": list(plans.bases),
        "utilisation": None if plans.utilisation is None else asdict(plans.utilisation),
        "ranked": [_plan(each) for each in plans.ranked],
        "rejected": [_rejected(each) for each in plans.rejected],
        "nothing": None if plans.ranked else plans.nothing,
    }


def _plan(found: Plan) -> dict[str, Any]:
    memory = found.memory
    return {
        "layout": asdict(found.layout),
        "recipe": asdict(found.recipe),
        "fit": found.fit,
        "why": found.why,
        "timing": None if found.timing is None else asdict(found.timing),
        "between_s": found.between_s,
        "memory": {
            "phase": memory.phase,
            "least": memory.least,
            "expected": memory.expected,
            "most": memory.most,
            "terms": [asdict(each) for each in memory.terms],
            "host": [asdict(each) for each in memory.host],
            "remarks": list(memory.remarks),
        },
    }


def _rejected(each: Rejected) -> dict[str, Any]:
    return {
        "layout": asdict(each.layout),
        "micro_batch": each.recipe.micro_batch,
        "recompute": each.recipe.recompute,
        "rule": each.rule,
        "why": each.why,
    }


def tracked_lines(spec: str, model: Model, recipe: Recipe) -> tuple[list[str], dict[str, Any]]:
    """Lines of text, and plain values: torch's trackers, the closed form, and their disagreement.

    The function of ``spec`` takes nothing and returns what :func:`portagpu.train.planning.track`
    takes: what builds the module, what makes a step's loss, and what makes the optimiser. It is of
    one rank that shares nothing, and is compared with the closed form of ``model`` and ``recipe``
    without a device's own needs. Raises ValueError for a spec that leads to no such function."""
    from portagpu.base.units import size
    from portagpu.facts.targets import load_target
    from portagpu.train.planning import Layout, estimate, track

    found = _run(spec, lambda: track(*_parts(spec)))
    alone = replace(recipe, sharding="ddp", foreach=False)
    expected = estimate(model, alone, Layout(), target=load_target("cpu-x86-64")).expected
    off = found.disagreement(expected)
    parts = ", ".join(f"{name} {size(part)}" for name, part in found.parts.items())
    lines = [
        f"torch's tracker on {spec}, one rank: {size(found.peak)} ({parts})",
        f"closed form of the same step: {size(expected)}, {off:+.1%} from the tracker",
    ]
    document = {"peak": found.peak, "parts": dict(found.parts), "closed_form": expected}
    return lines, document | {"disagreement": off}


def _run(spec: str, work: Callable[[], Tracked]) -> Tracked:
    """Run what calls the user's code.

    It prints to stderr, cannot end this program, and imports modules from its own folder.
    """
    folder = str(Path(spec).resolve().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            return work()
    except SystemExit as error:
        raise ValueError(f"{spec} ended the program (exit code {error.code})") from error
    finally:
        sys.path.remove(folder)


def _parts(spec: str) -> tuple[Any, Any, Any]:
    path, _, name = spec.rpartition(":")
    if not path or not name.isidentifier():
        raise ValueError(f"{spec!r} is not FILE:FUNCTION, such as train.py:planned")
    try:
        function = runpy.run_path(path, run_name="__portagpu_plan__").get(name)
        parts = None if function is None else function()
    except Exception as error:
        raise ValueError(f"{spec} did not run: {error_line(error)}") from error
    if function is None:
        raise ValueError(f"{path} has no function {name}")
    if not (isinstance(parts, tuple) and len(parts) == 3 and all(map(callable, parts))):
        raise ValueError(f"{spec} must return three functions: (build, step, optimizer)")
    return parts
