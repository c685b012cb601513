"""Wrong values: what a result says that found one, and whether device or software is to blame.

Peers decide. Wrong on one device and right on its peers is the device. Wrong in the same bits on
all of them is the software. Anything else leaves both open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from portagpu.runs.results.result import Result

KEY: Final = "wrong_value"
"""The key of ``extra`` that a result has only where a value was wrong."""
OPEN: Final = "device or software not separated"


class Cause(StrEnum):
    """What gave a wrong value."""

    DEVICE = "device"
    SOFTWARE = "software"
    OPEN = "device or software"


def wrong_value(digest: str = "", cause: Cause = Cause.OPEN) -> dict[str, Any]:
    """What ``extra`` of a result has that found a wrong value.

    :param digest: The digest of the wrong elements, their places and bits
        (``portagpu.train.exact.judge.Wrong.digest``); empty where nothing has one.
    """
    return {KEY: {"cause": str(cause), "digest": digest or None}}


def cause_of(result: Result) -> Cause | None:
    """What gave the wrong value that a result found; None where it found none."""
    stated = result.extra.get(KEY)
    if result.verdict is not Verdict.FAIL or not isinstance(stated, Mapping):
        return None
    cause = stated.get("cause")
    return Cause(cause) if cause in tuple(Cause) else Cause.OPEN


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
    return str(result.extra[KEY].get("digest") or "")


def _with_cause(result: Result, group: Sequence[Result], why_open: str) -> Result:
    digests = {digest_of(each) for each in group if cause_of(each) is not None}
    devices = {each.device for each in group}
    right = devices - {each.device for each in group if cause_of(each) is not None}
    cause, said, limit = Cause.OPEN, "", f"{OPEN}: {why_open}"
    if why_open:
        pass
    elif len(devices) < 2:
        limit = f"{OPEN}: no peer computed the same"
    elif right:
        cause, limit = Cause.DEVICE, ""
        said = f"its {len(right)} peers are right" if len(right) > 1 else "its peer is right"
    elif len(digests) == 1 and digests != {""}:
        cause, limit = Cause.SOFTWARE, "whether a device is wrong too"
        said = f"all {len(devices)} devices are wrong in the same bits: it is the software"
    else:
        limit = f"{OPEN}: its peers are wrong too, and not in the same bits"
    known = [each for each in result.does_not_show.split("; ") if not each.startswith(OPEN)]
    return replace(
        result,
        reason=result.reason if said in result.reason else f"{result.reason}; {said}",
        does_not_show="; ".join(each for each in (*known, limit) if each),
        extra={**result.extra, **wrong_value(digest_of(result), cause)},
    )
