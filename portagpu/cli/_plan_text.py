"""The text of ``portagpu plan``: the plans, the memory of the first, and what was rejected."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

import click

from portagpu.base.units import count, number, size
from portagpu.cli._common import print_lines, terminal
from portagpu.cli._tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from portagpu.train.planning import Model, Plan, Plans


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
        head = (
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
        click.echo("", file=stream)
        print_table(
            stream, terminal(stream), head, rows, {"micro-batch", "step s", "no overlap"}, {0}
        )
        _show_terms(plans.best, stream)
        said = [f"times of collectives: {'; '.join(plans.bases)}"] if plans.bases else []
        if plans.best.timing is not None and plans.efficiency is None:
            said.append(
                "products are taken to reach the dense peak, so the times are lower bounds: give "
                "the share that you have measured as --efficiency"
            )
        print_lines([*said, *plans.best.memory.remarks], stream)
    counted = Counter(each.rule for each in plans.rejected)
    first = {each.rule: each for each in reversed(plans.rejected)}
    rejected = [
        f"{times} rejected by {rule}: {first[rule].why}" for rule, times in counted.most_common()
    ]
    print_lines(rejected, stream)
    click.echo("", file=stream)


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
    head = ("memory of the first plan", "least", "expected", "most", "formula", "source")
    click.echo("", file=stream)
    print_table(
        stream, terminal(stream), head, rows, {"least", "expected", "most"}, {len(rows) - 1}
    )
