"""``portagpu occupancy``: what of a unit a kernel fills, what limits it, what one step needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    human_stream,
    json_option,
    terminal,
    write_json,
)
from portagpu.cli._complete import complete_arch

if TYPE_CHECKING:
    from portagpu.report.charts import Chart
    from portagpu.sizing import Limit, Occupancy

SCHEMA: Final = "portagpu.occupancy/1"
_HEAD: Final = ("resource", "takes", "of", "unit", "room for", "source")
_RIGHT: Final = frozenset({"takes", "of", "room for"})
_CANNOT_LAUNCH: Final = 1


@click.command()
@click.option(
    "--arch",
    required=True,
    shell_complete=complete_arch,
    metavar="NAME",
    help='The architecture: "sm_90", "gfx942".',
)
@click.option("--threads", required=True, type=int, metavar="N", help="Threads a block.")
@click.option(
    "--regs",
    "registers",
    required=True,
    type=int,
    metavar="N",
    help="32-bit registers a thread; VGPRs without AccVGPRs.",
)
@click.option(
    "--smem",
    "shared_memory",
    type=int,
    default=0,
    metavar="BYTES",
    help="Shared memory a block, static and dynamic.",
)
@click.option("--acc", "accumulators", type=int, default=0, metavar="N", help="AccVGPRs a thread.")
@click.option(
    "--sgprs",
    "scalar_registers",
    type=int,
    default=0,
    metavar="N",
    help="SGPRs a wave, with VCC, FLAT_SCRATCH and XNACK.",
)
@click.option(
    "--barriers", type=int, default=1, metavar="N", help="Barriers a block; by default 1."
)
@click.option(
    "--opt-in/--no-opt-in",
    default=True,
    help="Whether the kernel asked for more shared memory than the default; by default it did.",
)
@click.option(
    "--carveout", type=int, metavar="PERCENT", help="Shared memory's share of what it can be."
)
@click.option("--wave-size", type=int, metavar="N", help="Where an architecture has several.")
@click.option("--cu-mode", is_flag=True, help="A block keeps to one compute unit of RDNA.")
@click.option("--plot", metavar="FILE", help="Also draw the occupancy as a curve, an SVG file.")
@click.option(
    "--over",
    type=click.Choice(["registers", "shared-memory"]),
    default="registers",
    show_default=True,
    help="What the curve is drawn over.",
)
@json_option
def occupancy(
    arch: str, plot: str | None, over: str, json_to: str | None, **asked: Any
) -> int | None:
    """Show how many blocks of a kernel a unit holds, what limits it, and what one step more needs.

    From facts alone: no device is opened. Exit code 1 for a kernel that cannot be launched.
    """
    from portagpu import sizing
    from portagpu.errors import LimitExceeded, Unsupported
    from portagpu.files import write_atomic

    if plot == STDOUT:
        raise click.UsageError("--plot writes a file; '-' is none")
    check_outputs(json_to, plot)
    try:
        found = sizing.occupancy(arch, **asked)
    except (LimitExceeded, Unsupported, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if plot is not None:
        from portagpu.report.charts import standalone

        write_atomic(plot, f"{standalone(_chart(found, over.replace('-', '_')))}\n")
    _show(found, json_to)
    write_json(document(found), json_to)
    return None if found.blocks else _CANNOT_LAUNCH


def document(found: Occupancy) -> dict[str, Any]:
    """What ``--json`` writes; bytes for shared memory, registers of 32 bits."""
    target = found.target
    return {
        "schema": SCHEMA,
        "arch": target.arch.name,
        "vendor": target.vendor,
        "unit": target.value("exec.unit_name"),
        "kernel": asdict(found.kernel),
        "blocks_per_unit": found.blocks,
        "waves_per_block": found.kernel.waves,
        "waves_per_unit": found.waves,
        "max_waves_per_unit": found.max_waves,
        "fraction": found.fraction,
        "limited_by": list(found.limited_by),
        "waves_per_simd": None if found.per_simd is None else asdict(found.per_simd),
        "limits": [
            {
                **asdict(limit),
                "source": list(target.facts[limit.key].source),
                "confidence": str(target.facts[limit.key].confidence),
            }
            for limit in found.limits
        ],
        "next_steps": [asdict(step) for step in found.next_steps()],
    }


def _show(found: Occupancy, json_to: str | None) -> None:
    from portagpu.cli._tables import show
    from portagpu.sizing.explain import head_lines, step_lines

    stream = human_stream(json_to)
    rows = [_row(found, limit) for limit in found.limits]
    click.echo("\n".join([*head_lines(found), ""]), file=stream)
    least = {at for at, limit in enumerate(found.limits) if limit.blocks == found.blocks}
    show(stream, terminal(stream), _HEAD, rows, _RIGHT, bold=least)
    steps = step_lines(found)
    if steps:
        click.echo("\n".join(["", *steps]), file=stream)


def _row(found: Occupancy, limit: Limit) -> tuple[str, ...]:
    fact = found.target.facts[limit.key]
    return (
        str(limit.resource),
        f"{limit.takes:,}",
        "-" if limit.has is None else f"{limit.has:,}",
        f"{limit.unit}, {limit.of}",
        f"{limit.blocks:,}",
        ", ".join(fact.source) or str(fact.confidence),
    )


def _chart(found: Occupancy, over: str) -> Chart:
    from portagpu.report.charts import Chart, Series
    from portagpu.sizing.explain import unit_name, wave_name
    from portagpu.sizing.steps import curve

    kernel = found.kernel
    registers = over == "registers"
    fixed = f"{kernel.shared_memory:,} B" if registers else f"{kernel.registers} registers"
    waves = f"{wave_name(found.target)}s"
    return Chart(
        title=f"{found.target.arch}, {kernel.threads:,} threads a block, {fixed}",
        x_label="registers a thread" if registers else "shared memory a block",
        x_unit="1" if registers else "B",
        y_label=f"{waves} a {unit_name(found.target)}",
        y_unit="1",
        x_log=False,
        series=[
            Series("occupancy", curve(found, over)),
            Series("this kernel", ((getattr(kernel, over), found.waves),)),
        ],
    )
