"""The failures that a target expects until a day: what they excuse, and which are stale.

A clock that was set back does not revive an expired one.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.runs.results.run import Result, Verdict
from portagpu.suites.conformance.case_ids import matches
from portagpu.suites.conformance.judge import suite_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.facts.targets import ExpectedFailure

_WRITTEN_OFTEN: Final = ("/tmp", "/run", "/var/log", "/var/tmp", "/etc")  # noqa: S108
"""Folders that a running machine changes all the time."""


def today(folders: Iterable[Path | str] | None = None) -> date:
    """The day in UTC: the clock's, or the last change of one of ``folders`` if that is later.

    The default folders are ones that a machine changes all the time, and this installation's. A
    folder from the future makes a failure expire early, which is reported, and never late.
    """
    if folders is None:
        folders = (*_WRITTEN_OFTEN, tempfile.gettempdir(), Path(__file__).parent)
    seconds = [datetime.now(UTC).timestamp()]
    for folder in folders:
        with contextlib.suppress(OSError):
            seconds.append(Path(folder).stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError):  # a file system's year 10000
        return datetime.fromtimestamp(max(seconds), UTC).date()
    return date.max


def apply_expected_failures(
    result: Result,
    failures: Sequence[ExpectedFailure],
    day: date | None = None,
    *,
    lost: bool = False,
) -> Result:
    """``result``, or SKIP if it failed as the target expects and the day has not passed.

    An ERROR is never excused, nor what was ``lost``: a case or a rank that hung or died.
    """
    if not result.failed:
        return result
    day = day or today()
    for each in failures:
        if not matches(each.case_id_pattern, result.id):
            continue
        reference = f"{each.reason}, {each.url}"
        if each.expired(day):
            reason = f"{result.reason} (its excuse expired on {each.expires}: {reference})"
            return replace(result, reason=reason)
        if lost or result.verdict is Verdict.ERROR:
            reason = (
                f"{result.reason} (the expected failure excuses no death and no hang: {reference})"
            )
            return replace(result, reason=reason)
        reason = f"expected to fail until {each.expires} ({reference}): {result.reason}"
        return replace(result, verdict=Verdict.SKIP, reason=reason)
    return result


def stale_expected_failures(
    failures: Sequence[ExpectedFailure], judged: Mapping[str, Verdict], day: date | None = None
) -> list[Result]:
    """One ERROR for every expected failure that expired, fits no case, or whose cases all pass.

    ``judged`` has the verdict of every case of a complete run before any was excused.
    """
    day = day or today()
    found = []
    for number, each in enumerate(failures, 1):
        verdicts = [
            verdict for full, verdict in judged.items() if matches(each.case_id_pattern, full)
        ]
        problem = ""
        if each.expired(day):
            problem = f"expired on {each.expires}: solve it, or state a new day"
        elif not verdicts:
            problem = "fits no case: correct the pattern or remove it"
        elif all(verdict is Verdict.PASS for verdict in verdicts):
            problem = "fits only cases that pass: remove it"
        if problem:
            reason = f"the expected failure {each.case_id_pattern!r} ({each.url}) {problem}"
            found.append(suite_result(f"expected-failure-{number}", Verdict.ERROR, reason))
    return found
