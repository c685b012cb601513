"""``portagpu occupancy``: a kernel's occupancy, its limits, and what raises it by one step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from portagpu.cli._common import (
    STDOUT,
    check_outputs,
    complete_arch,
    json_option,
    terminal,
    text_stream,
    write_json,
)

if TYPE_CHECKING:
    from portagpu.devices.sizing import Limit, Occupancy
    from portagpu.reports.html.charts import Chart

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
@click.option("--threads", required=True, type=int, metavar="N", help="Threads per block.")
@click.option(
    "--regs",
    "registers",
    required=True,
    type=int,
    metavar="N",
    help="32-bit registers per thread; VGPRs without AccVGPRs.",
)
@click.option(
    "--smem",
    "shared_memory",
    type=int,
    default=0,
    metavar="BYTES",
    help="Shared memory per block, static and dynamic.",
)
@click.option(
    "--acc", "accumulators", type=int, default=0, metavar="N", help="AccVGPRs per thread."
)
@click.option(
    "--sgprs",
    "scalar_registers",
    type=int,
    default=0,
    metavar="N",
    help="SGPRs per wave, including VCC, FLAT_SCRATCH and XNACK.",
)
@click.option(
    "--barriers", type=int, default=1, metavar="N", help="Barriers per block. Default: 1."
)
@click.option(
    "--opt-in/--no-opt-in",
    default=True,
    help="Whether the kernel opted in to more shared memory than the default limit. Default: yes.",
)
@click.option(
    "--carveout", type=int, metavar="PERCENT", help="Shared memory carveout, in % of its maximum."
)
@click.option("--wave-size", type=int, metavar="N", help="Wave size, if there are several.")
@click.option("--cu-mode", is_flag=True, help="Keep a block on one compute unit (RDNA).")
@click.option("--plot", metavar="FILE", help="Also write the occupancy curve to FILE, as SVG.")
@click.option(
    "--over",
    type=click.Choice(["registers", "shared-memory"]),
    default="registers",
    show_default=True,
    help="The x axis of the curve.",
)
@json_option
def occupancy(
    arch: str, plot: str | None, over: str, json_to: str | None, **asked: Any
) -> int | None:
    """Show how many blocks of a kernel fit on a unit, what limits it, and how to raise it.

    Computed from the facts of the target: no device is opened. The exit code is 1 if the kernel
    cannot be launched.
    """
    from portagpu.base.errors import LimitExceeded, Unsupported
    from portagpu.base.files import write_atomic
    from portagpu.devices import sizing

    if plot == STDOUT:
        raise click.UsageError("--plot needs the name of a file, not '-'")
    check_outputs(json_to, plot)
    try:
        found = sizing.occupancy(arch, **asked)
    except (LimitExceeded, Unsupported, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if plot is not None:
        from portagpu.reports.html.charts import standalone

        write_atomic(plot, f"{standalone(_chart(found, over.replace('-', '_')))}\n")
    _show(found, json_to)
    write_json(document(found), json_to)
    return None if found.blocks else _CANNOT_LAUNCH


def document(found: Occupancy) -> dict[str, Any]:
    """The document that ``--json`` writes: shared memory in bytes, registers of 32 bits."""
    from portagpu.devices.sizing.calculator import unit_name

    target = found.target
    return {
        "schema": SCHEMA,
        "arch": target.arch.name,
        "vendor": target.vendor,
        "unit": unit_name(found),
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
    from portagpu.cli._tables import print_table
    from portagpu.devices.sizing.calculator import head_lines, step_lines

    stream = text_stream(json_to)
    rows = [_row(found, limit) for limit in found.limits]
    click.echo("\n".join([*head_lines(found), ""]), file=stream)
    least = {at for at, limit in enumerate(found.limits) if limit.blocks == found.blocks}
    print_table(stream, terminal(stream), _HEAD, rows, _RIGHT, bold=least)
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
    from portagpu.devices.sizing.calculator import curve, unit_name, wave_name
    from portagpu.reports.html.charts import Chart, Series

    kernel = found.kernel
    registers = over == "registers"
    fixed = f"{kernel.shared_memory:,} B" if registers else f"{kernel.registers} registers"
    waves = f"{wave_name(found.target)}s"
    return Chart(
        title=f"{found.target.arch}, {kernel.threads:,} threads a block, {fixed}",
        x_label="registers a thread" if registers else "shared memory a block",
        x_unit="1" if registers else "B",
        y_label=f"{waves} a {unit_name(found)}",
        y_unit="1",
        x_log=False,
        series=[
            Series("occupancy", curve(found, over)),
            Series("this kernel", ((getattr(kernel, over), found.waves),)),
        ],
    )
