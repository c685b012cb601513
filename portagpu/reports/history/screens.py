"""What all screens of a device say together: how many results were judged, and none was wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import FAILING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from portagpu.reports.history.model import Judged, Machine

DAYS: Final = 30
"""Rates of wrong results grow with the age of a device: what is older says little."""
ALL: Final = ""
"""In place of a probe: all of them together."""
_DAY_S: Final = 86_400.0
_PREFIX: Final = "screen/"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCount:
    """The results of one probe on one device, in the newest run and in the last days.

    :param probe: Its name; ``ALL`` for all probes together.
    :param runs: How many runs of the last days screened it.
    :param newest: Results in the newest of them.
    :param recent: Results in all of them.
    :param wrong: How many of these runs had a wrong result.
    """

    machine: Machine
    device: str
    probe: str
    runs: int
    newest: float
    recent: float
    wrong: int
    newest_was_wrong: bool

    @property
    def newest_rate(self) -> float | None:
        """The rate that the newest run excludes at 95 %; None where a result was wrong."""
        return None if self.newest_was_wrong else excluded(self.newest)

    @property
    def recent_rate(self) -> float | None:
        """The rate that the runs of the last days exclude together; None where one was wrong."""
        return None if self.wrong else excluded(self.recent)

    def to_json(self) -> dict[str, Any]:
        """An object for ``--json``."""
        return {
            "host": self.machine.host,
            "target": self.machine.target,
            "device": self.device,
            "probe": self.probe or None,
            "runs": self.runs,
            "wrong_runs": self.wrong,
            "newest": {"results": self.newest, "excluded_rate": self.newest_rate},
            "recent": {"results": self.recent, "excluded_rate": self.recent_rate},
        }


def excluded(results: float) -> float | None:
    """The rate that this many right results exclude at 95 %: ``screen.statistics`` has the rule."""
    from portagpu.suites.screen.statistics import excluded_rate

    return excluded_rate(int(results))


def device_counts(found: Iterable[Judged], now_s: float, days: int = DAYS) -> list[DeviceCount]:
    """The counts of each probe on each device, and of all probes on it, which come first.

    A device is a place in a machine: one that was replaced goes on with the counts of the old one.

    :param found: What runs judged.
    :param now_s: The end of the days, in seconds since 1970, UTC.
    :param days: How many days.
    """
    groups: dict[tuple[Machine, str, str], list[Judged]] = {}
    for each in found:
        if not now_s - days * _DAY_S < each.run.started_s <= now_s:
            continue
        probe = each.what.id.removeprefix(_PREFIX)
        for name in (ALL, probe):
            groups.setdefault((each.run.machine, each.what.device or "", name), []).append(each)
    return [_count(*key, group) for key, group in sorted(groups.items(), key=_order)]


def _order(group: tuple[tuple[Machine, str, str], list[Judged]]) -> tuple[str, str, str]:
    machine, device, probe = group[0]
    return str(machine), device, probe


def _count(machine: Machine, device: str, probe: str, group: list[Judged]) -> DeviceCount:
    newest = max(group, key=lambda each: each.run.started_s).run.key
    wrong = {each.run.key for each in group if each.verdict in FAILING}
    return DeviceCount(
        machine=machine,
        device=device,
        probe=probe,
        runs=len({each.run.key for each in group}),
        newest=sum(each.results for each in group if each.run.key == newest),
        recent=sum(each.results for each in group),
        wrong=len(wrong),
        newest_was_wrong=newest in wrong,
    )
