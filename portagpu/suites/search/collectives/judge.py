"""What all ranks' reports say together: the first difference, and the rank at which it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portagpu.base.text import ranks_in_words
from portagpu.suites.search.difference import Difference, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

Reports = "Mapping[int, dict[str, Any]]"


def difference(reports: Mapping[int, dict[str, Any]]) -> str:
    """The clause of the first call that went wrong on a rank; empty if none did.

    ``reports`` are those of :class:`portagpu.suites.search.collectives.runner.Report` as JSON, by
    rank."""
    found = [
        (index, rank, f"rank {rank} {text}")
        for rank, report in reports.items()
        for index, text in _own(report)
    ]
    found += _refusals(reports) + _early_leavers(reports) + _other_bits(reports)
    if found:
        index, _, text = min(found)
        return f"{_label(reports, index)}: {text}"
    waiting = [(each["raised"], rank) for rank, each in reports.items() if each["raised"]]
    if not waiting:
        return ""
    (index, text, _), rank = min(waiting)
    gone = [each for each, report in reports.items() if not report["raised"]]
    past = f", while {ranks_in_words(gone)} went on" if gone else ""
    waited = f"{_label(reports, index)}: rank {rank} waited in vain{past}: {text}"
    return Difference(waited, Kind.HANG)


def _own(report: dict[str, Any]) -> list[tuple[int, str]]:
    """What a rank saw by itself: wrong values, and errors of its own."""
    found = [tuple(report["wrong"])] if report["wrong"] else []
    if report["raised"] and not report["raised"][2]:
        index, text, _ = report["raised"]
        found.append((index, f"raised {text}"))
    return found


def _refusals(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Calls that some of the ranks refused, and others took, as far as those came to an end."""
    found = []
    for rank, report in reports.items():
        for index in report["refused"]:
            others = [
                each
                for each, other in reports.items()
                if index in other["members"]
                and index not in other["refused"]
                and not other["raised"]
            ]
            if others:
                found.append(
                    (index, rank, f"rank {rank} refused what {ranks_in_words(others)} took")
                )
    return found


def _early_leavers(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Barriers that a rank left before the last one came."""
    found = []
    for rank, report in reports.items():
        for index, (_, left) in report["barriers"].items():
            came = {
                each: other["barriers"][index][0]
                for each, other in reports.items()
                if index in other["barriers"]
            }
            last = max(came, key=lambda each: came[each])
            if came[last] > left:
                text = f"rank {rank} left the barrier before rank {last} came to it"
                found.append((int(index), rank, text))
    return found


def _other_bits(reports: Mapping[int, dict[str, Any]]) -> list[tuple[int, int, str]]:
    """Rounded results that one rank has otherwise than the first one that has them."""
    found = []
    first: dict[str, tuple[int, str]] = {}
    for rank, report in sorted(reports.items()):
        for call, digest in report["rounded"].items():
            other, wanted = first.setdefault(call, (rank, digest))
            if digest != wanted:
                found.append(
                    (int(call.split()[0]), rank, f"rank {rank} got other bits than rank {other}")
                )
    return found


def _label(reports: Mapping[int, dict[str, Any]], index: int) -> str:
    for each in reports.values():
        if str(index) in each["labels"]:
            return str(each["labels"][str(index)])
    return f"call {index + 1}"
