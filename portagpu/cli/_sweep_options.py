"""The options that verify and tune share: which collectives run, over what, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from portagpu.cli._common import SizeType, check_finite
from portagpu.facts.nccl_tests.model import TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_F = TypeVar("_F", bound="Callable[..., Any]")


def sweep_options(
    operations: Sequence[str],
    *,
    fewest_ranks: int,
    ranks: str,
    dtypes: str,
    sizes: str,
    quick: str,
    full: str,
) -> Callable[[_F], _F]:
    """Add the options; the texts say the defaults, and what ``--quick`` and ``--full`` mean."""
    options = (
        click.option(
            "--backend", metavar="NAME", help="Run on this backend. Default: this machine's."
        ),
        click.option(
            "--ranks",
            type=click.IntRange(fewest_ranks, 4096),
            multiple=True,
            metavar="N",
            help=f"Number of ranks; may be repeated. Default: {ranks}, as many as there are "
            "devices.",
        ),
        click.option(
            "--only",
            type=click.Choice(tuple(operations)),
            multiple=True,
            metavar="OP",
            help=f"Operation, may be repeated: {', '.join(operations)}. Default: all.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(tuple(TYPE_NAMES)),
            multiple=True,
            metavar="DTYPE",
            help=f"torch's name of a dtype, as bfloat16; may be repeated. Default: {dtypes}.",
        ),
        click.option(
            "--size",
            type=SizeType(),
            multiple=True,
            metavar="BYTES",
            help=f"Bytes in total, as in 64K; may be repeated. Default: {sizes}.",
        ),
        click.option("--quick", is_flag=True, help=f"{quick} (default)."),
        click.option("--full", is_flag=True, help=f"{full}: minutes."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            callback=check_finite,
            metavar="SECONDS",
            help="Hard limit of one operation over one world of ranks. Default: 120, with --full "
            "600.",
        ),
    )

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add
