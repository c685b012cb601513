"""What a failed check means, how severe it is, what to do and which action that is.

The advice of a check is data (``advice.toml``). An event of a log or the answer of a tool has the
action of its vendor's table (``todo``), with the vendor's document as its source.

A wrong value has its own advice. Whether the device or the software gave it, peers decide: wrong on
one device and right on its peers is the device; wrong in the same bits on all of them is the
software; anything else leaves both open.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.actions import Action as Action
from portagpu.facts.vendors import tables
from portagpu.runs.results.verdicts import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.runs.results.result import Result

HUNG: Final = "hung"
"""The value of a result that met a limit of time: ``portagpu.runs.world.RankState.HUNG``."""
WRONG_VALUE: Final = "wrong_value"
"""The key of ``extra`` that a result has only where a value was wrong."""
OPEN: Final = "device or software not separated"
_TABLE: Final = Path(__file__).resolve().parent / "advice.toml"


class Cause(StrEnum):
    """What gave a wrong value."""

    DEVICE = "device"
    SOFTWARE = "software"
    OPEN = "device or software"


@dataclass(frozen=True, slots=True)
class Severity:
    """How severe a failure is; ``rank`` 0 is the most severe.

    ``action`` is what its checks ask for that state none (``portagpu.runs.results.advice``).
    """

    id: str
    title: str
    rank: int
    action: str


@dataclass(frozen=True, slots=True)
class Check:
    """The advice for results of ``suite`` whose id matches one of ``ids`` (* is a wildcard).

    ``action`` is that of a failure, and ``unverified`` that of an UNVERIFIED result.
    """

    suite: str
    ids: tuple[str, ...]
    severity: Severity
    means: str
    do: str
    action: str
    unverified: str


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


@cache
def severities() -> Mapping[str, Severity]:
    """Every severity by its id, the most severe first."""
    entries = _table()["severity"]
    return {
        each["id"]: Severity(each["id"], each["title"], n, each["action"])
        for n, each in enumerate(entries)
    }


@cache
def checks() -> tuple[Check, ...]:
    """Every check, in the order of the page."""
    return tuple(
        Check(
            each.get("suite", "bringup"),
            tuple(each["ids"]),
            severities()[each["severity"]],
            each["means"],
            each["do"],
            each.get("action", severities()[each["severity"]].action),
            each.get("unverified", "none"),
        )
        for each in _table()["check"]
    )


@cache
def _check_of_any(key: str) -> Check:
    """The check of a kind of failure, whatever its id."""
    each = _table()[key]
    severity = severities()[each["severity"]]
    action = each.get("action", severity.action)
    return Check("", ("*",), severity, each["means"], each["do"], action, "none")


def time_check() -> Check:
    """The check of every failure of time alone, whatever its id."""
    return _check_of_any("time")


def wrong_check(cause: Cause) -> Check:
    """The check of every value that was wrong, whatever its id."""
    return _check_of_any("software" if cause is Cause.SOFTWARE else "wrong")


def same_gates() -> Mapping[str, str]:
    """Each gate that has the checks of another: its id, and the other's."""
    same: Mapping[str, str] = _table()["same"]
    return same


@cache
def find_check(suite: str, identifier: str) -> Check | None:
    """The check for a result id; None if the table has none.

    A suite that judges with another's checks has its own and those.
    """
    name = re.sub(r"\[.*", "", identifier)
    gate, slash, rest = name.partition("/")
    suites = {suite, _table()["same_suite"].get(suite, suite)}
    if "bringup" in suites:
        name = f"{same_gates().get(gate, gate)}{slash}{rest}"
    own = [each for each in checks() if each.suite in suites]
    exact = next((each for each in own if name in each.ids), None)
    fitting = (each for each in own if any(fnmatchcase(name, wanted) for wanted in each.ids))
    return exact or next(fitting, None)


def check_of(result: Result) -> Check | None:
    """The check of ``result``, also if a gate adopted it from another suite.

    What only met a limit of time says so by its value, and is never a reason to replace a device.
    A wrong value has the same advice wherever it is found, unless its check has graver advice.
    """
    if result.failed and result.value == HUNG:
        return time_check()
    own = find_check(str(result.extra.get("suite", result.suite)), result.id)
    cause = cause_of(result)
    if cause is None:
        return own
    of_wrong = wrong_check(cause)
    if cause is Cause.SOFTWARE or own is None or own.severity.rank > of_wrong.severity.rank:
        return of_wrong
    return own


def severity_of(result: Result) -> Severity:
    """The severity of a failed result.

    It is ``extra.severity`` if an event set it, else that of the check. A check that broke (ERROR)
    has the severity "broken", unless the device could not be opened.
    """
    known = severities()
    check = check_of(result)
    found = known.get(str(result.extra.get("severity")), check.severity if check else None)
    if found is None:
        found = known["fault"]
    if result.verdict is Verdict.ERROR and found is not known["gone"]:
        return known["broken"]
    return found


def severity_of_event(code: str, meaning: str | None) -> str | None:
    """The severity that a vendor states for a log event; None if its check decides."""
    text = f"{code} ({meaning})"
    own = [table.get("severity", {}) for table in tables("kernel_log").values()]
    for severity in severities():
        patterns = (pattern for each in own for pattern in each.get(severity, ()))
        if any(fnmatchcase(text.lower(), str(pattern).lower()) for pattern in patterns):
            return severity
    return None


def gravest_first(results: Iterable[Result]) -> list[Result]:
    """The failed results, the most severe first; equal ones stay in order."""
    failed = [result for result in results if result.failed]
    return sorted(failed, key=lambda result: severity_of(result).rank)


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
    check = check_of(result)
    if result.verdict is Verdict.UNVERIFIED:
        return Action(check.unverified) if check is not None else Action.NONE
    severity = severity_of(result)
    if check is None or severity is severities()["broken"]:
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


def wrong_value(digest: str = "", cause: Cause = Cause.OPEN) -> dict[str, Any]:
    """What ``extra`` of a result has that found a wrong value.

    :param digest: The digest of the wrong elements, their places and bits
        (``portagpu.train.exact.judge.Wrong.digest``); empty where nothing has one.
    """
    return {WRONG_VALUE: {"cause": str(cause), "digest": digest or None}}


def cause_of(result: Result) -> Cause | None:
    """What gave the wrong value that a result found; None where it found none."""
    stated = result.extra.get(WRONG_VALUE)
    if result.verdict is not Verdict.FAIL or not isinstance(stated, Mapping):
        return None
    cause = stated.get("cause")
    return Cause(cause) if cause in tuple(Cause) else Cause.OPEN


@dataclass(frozen=True, slots=True)
class Separation:
    """What gave a wrong value, and why that is known, in one clause."""

    cause: Cause
    reason: str


def separation_of(
    own: str, peers: Sequence[Sequence[str | None]], *, distinct: bool = True
) -> Separation:
    """Whether the device or the software gave a wrong value: what peers make of the same work.

    What is wrong on one device and right on a peer is the device. What is wrong in the same bits on
    all of them is the software that they share.

    :param own: The digest of the wrong elements; empty where nothing has one.
    :param peers: For each peer that did the same work, the digest of what was wrong in each of its
        runs; None for a run that was right.
    :param distinct: Whether the peers are devices of their own, and not ranks of this one.
    """
    known = [each for each in peers if each]
    if not known:
        return Separation(Cause.OPEN, f"{OPEN}: no peer did the same work")
    right = [each for each in known if each.count(None) == len(each)]
    if right:
        which = "its peer is" if len(known) == 1 else f"{len(right)} of {len(known)} peers are"
        return Separation(Cause.DEVICE, f"the device: {which} right on the same work")
    same = bool(own) and all(own in each for each in known)
    if same and distinct:
        which = "its peer is" if len(known) == 1 else f"all {len(known)} peers are"
        return Separation(Cause.SOFTWARE, f"the software: {which} wrong in the same bits")
    bits = "the same" if same else "other"
    return Separation(Cause.OPEN, f"{OPEN}: every peer is wrong too, in {bits} bits")


def separated(results: Iterable[Result], why_open: str = "") -> list[Result]:
    """``results``, where each wrong value says whether the device or the software gave it.

    Results of one id are of peers: each names another device, and all did the same work.

    :param results: The results of all devices.
    :param why_open: Why they are not peers, in one clause; empty where they are.
    :returns: The results in the same order; one that already blames the software stays as it is.
    """
    found = list(results)
    groups: dict[str, list[Result]] = {}
    for each in found:
        if cause_of(each) is not None or _is_right(each):
            groups.setdefault(each.id, []).append(each)
    return [
        each
        if cause_of(each) in (None, Cause.SOFTWARE)
        else _with_cause(each, groups[each.id], why_open)
        for each in found
    ]


def _is_right(result: Result) -> bool:
    """Whether its values were judged and right: a slow one has right values too."""
    number = isinstance(result.value, int | float)
    return result.verdict is Verdict.PASS or (number and result.verdict is not Verdict.ERROR)


def digest_of(result: Result) -> str:
    """The digest of the wrong elements of a result with a wrong value; empty where it has none."""
    return str(result.extra[WRONG_VALUE].get("digest") or "")


def _with_cause(result: Result, group: Sequence[Result], why_open: str) -> Result:
    peers: dict[str | None, list[str | None]] = {}
    for each in group:
        if each.device != result.device:
            wrong = digest_of(each) if cause_of(each) is not None else None
            peers.setdefault(each.device, []).append(wrong)
    found = separation_of(digest_of(result), list(peers.values()))
    if why_open:
        found = Separation(Cause.OPEN, f"{OPEN}: {why_open}")
    said = found.reason not in result.reason and found.cause is not Cause.OPEN
    limits = {Cause.OPEN: found.reason, Cause.SOFTWARE: "whether a device is wrong too"}
    known = [each for each in result.does_not_show.split("; ") if not each.startswith(OPEN)]
    return replace(
        result,
        reason=f"{result.reason}; {found.reason}" if said else result.reason,
        does_not_show="; ".join(filter(None, (*known, limits.get(found.cause, "")))),
        extra={**result.extra, **wrong_value(digest_of(result), found.cause)},
    )
