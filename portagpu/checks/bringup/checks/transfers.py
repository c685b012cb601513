"""The gate transfers: do copies arrive, and how fast are memory and launches?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.checks.bringup.checks._measures import measure_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.checks.bringup.context import Context
    from portagpu.runs.results.run import Result


def check(context: Context) -> Iterator[Result]:
    """The gate's measures on every device; values are checked before a time is kept."""
    yield from measure_devices(context, context.amounts["measures"])
