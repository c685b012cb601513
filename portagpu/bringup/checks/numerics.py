"""Does the device compute what the conformance suite specifies?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.results import Verdict
from portagpu.suite import conform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result


def check(context: Context) -> Iterator[Result]:
    """The suite's smoke cases, or all of it, on the first device."""
    results = conform(
        context.backend,
        smoke=context.amounts["smoke"],
        on_result=lambda result: context.step(result.id),
    )
    if not results:
        yield context.result("suite", Verdict.INCONCLUSIVE, "the conformance suite ran no case")
    for result in results:
        yield context.adopt(result)
