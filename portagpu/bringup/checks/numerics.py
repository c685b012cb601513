"""Does the device compute what the conformance suite specifies?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.results import Verdict
from portagpu.suite import Selection, conform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portagpu.bringup.context import Context
    from portagpu.results import Result


def check(context: Context) -> Iterator[Result]:
    """The suite's smoke cases, or all of it, on the first device."""
    found: list[Result] = []

    def keep(result: Result) -> None:
        found.append(context.adopt(result))
        context.step(result.id)

    try:
        selection = Selection(smoke=context.amounts["smoke"])
        ended = context.time_is_up
        conform(context.backend, selection=selection, on_result=keep, ended=ended)
    except KeyboardInterrupt:
        # what was judged before the interrupt stays part of the run
        yield from found
        raise
    if not found:
        yield context.result("suite", Verdict.INCONCLUSIVE, "the conformance suite ran no case")
    yield from found
