"""Are collectives exact on every rank, how fast are they, and is any rank unlike its peers?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu import bench
from portagpu.bringup.checks._measures import adopted
from portagpu.results import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result


def check(context: Context) -> Iterator[Result]:
    """Checked collectives with their bus bandwidth, then the same work on each rank in turn."""
    world = context.amounts["shared_world"] if context.shared else len(context.devices)
    if world < 2:
        yield context.result(
            "world", Verdict.SKIP, "one device: there is nothing to communicate with"
        )
        return
    effort = bench.Effort(context.effort)
    found = bench.run(
        ["collectives"],
        ranks=context.ranks,
        backend=context.backend,
        world=world,
        effort=effort,
        target=context.wanted,
        on_case=lambda case, number, of: context.step(f"{case.id} ({number} of {of})"),
        timeout_s=context.left_s,
    )
    yield from adopted(context, found, None)
    context.step(f"each of {world} ranks in turn")
    compared = bench.compare_ranks(
        context.ranks,
        backend=context.backend,
        world=world,
        effort=effort,
        timeout_s=context.left_s,
    )
    for result in compared.results:
        yield context.adopt(result)
