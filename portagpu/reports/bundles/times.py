"""When a run was, and whether that can be."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import ResultError

if TYPE_CHECKING:
    from portagpu.runs.results.run import Run

_FUTURE: Final = timedelta(minutes=5)
"""Clocks of two machines differ by less; a wrong time zone is at least 15 minutes."""
_OLDEST: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Older than any such document: a clock that was never set begins in 1970 or at a build's day."""
_ROUNDING_S: Final = 1.0
_TIME_OF_ID: Final = re.compile(r"(\d{8}T\d{6})Z-[0-9a-f]{8}")
"""How ``new_run`` makes an id."""


def started(run: Run) -> datetime:
    """When the run began."""
    return datetime.fromisoformat(run.info.started)


def wrong_clock(text: str, now: datetime) -> str:
    """Why a run cannot have begun then, in one clause; empty where it can."""
    began = datetime.fromisoformat(text)
    if began > now + _FUTURE:
        return (
            f"run.started: is {text}, in the future: the clock of that machine or of this one is "
            "wrong"
        )
    if began < _OLDEST:
        return f"run.started: is {text}: the clock of that machine was not set"
    return ""


def check_times(run: Run, now: datetime) -> None:
    """Raise ResultError for a run whose clock was wrong or jumped.

    ``duration_s`` comes from a clock that cannot jump. No result takes longer than its run, unless
    the document was put together by hand.
    """
    if wrong := wrong_clock(run.info.started, now):
        raise ResultError(wrong)
    began = started(run)
    if found := _TIME_OF_ID.fullmatch(run.info.id):
        named = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        if abs(named - began) > _FUTURE:
            raise ResultError(
                f"run.started: is {run.info.started}, but the id was made at {named:%FT%TZ}: the "
                "clock jumped, or one of them was edited"
            )
    longest = max(run.results, key=lambda each: each.duration_s, default=None)
    if longest is not None and longest.duration_s > run.info.duration_s + _ROUNDING_S:
        raise ResultError(
            f"run.duration_s: is {run.info.duration_s:g}, but {longest.id} took "
            f"{longest.duration_s:g} s: the clock jumped, or the run was not finished"
        )
