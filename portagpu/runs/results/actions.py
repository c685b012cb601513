"""What an operator does about a result, for programs: none, monitor, reset, isolate or replace.

The action of a check is data (``advice.toml``). An event of a log or a tool's answer has that of
its vendor's table (``todo``), with the vendor's document as its source.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from portagpu.facts.actions import Action as Action
from portagpu.runs.results import advice
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.runs.results.run import Result


OWN_SOURCE: Final = "docs/when-it-fails.md"
"""The source of a check's action: this project's own advice."""


def action_of(result: Result) -> Action:
    """The action of ``result``: its own (``extra.action``), or that of its check and verdict.

    A failure has the action of its check, one that broke (ERROR) that of the severity "broken". An
    UNVERIFIED result has what its check states for it, or none. PASS, SKIP and INCONCLUSIVE have
    none: nothing was found.
    """
    own = result.extra.get("action")
    if isinstance(own, str) and own in set(Action):
        return Action(own)
    if result.verdict not in FAILING and result.verdict is not Verdict.UNVERIFIED:
        return Action.NONE
    check = advice.check_of(result)
    if result.verdict is Verdict.UNVERIFIED:
        return Action(check.unverified) if check is not None else Action.NONE
    severity = advice.severity_of(result)
    if check is None or severity is advice.severities()["broken"]:
        return Action(severity.action)
    return Action(check.action)


def action_source(result: Result) -> str:
    """Where the action of ``result`` is from: a vendor's document, or this project's advice."""
    own = result.extra.get("action_source")
    return own if isinstance(own, str) and own else OWN_SOURCE


def with_action(result: Result) -> Result:
    """``result`` with its action and the source written into it, if it asks for one or failed."""
    action = action_of(result)
    if action is Action.NONE and not result.failed:
        return result
    stated = {"action": str(action), "action_source": action_source(result)}
    return replace(result, extra={**result.extra, **stated})


def worst_action(results: Iterable[Result]) -> Action:
    """The gravest action of ``results``; none if there are none."""
    return max(map(action_of, results), default=Action.NONE)
