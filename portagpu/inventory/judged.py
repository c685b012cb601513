"""One judgement of a machine's devices, whatever was judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from portagpu.result_schema import printable
from portagpu.verdicts import Verdict, fold

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement; ``device`` is the culprit's address or name, None where all are well.

    ``value`` is what was seen, in ``unit`` as results write it ("1" for a count).
    """

    name: str
    verdict: Verdict
    device: str | None
    reason: str
    value: float | None = None
    unit: str | None = None


def combined(judgements: Iterable[Judged]) -> list[Judged]:
    """One judgement of each name and device: the worst verdict, and every reason for it.

    Two links of one GPU may be down, and a log holds several kinds of errors.
    """
    groups: dict[tuple[str, str | None], list[Judged]] = {}
    for each in judgements:
        # as results write it: a device's own name may hold what no terminal can show
        device = printable(each.device or "") or None
        groups.setdefault((each.name, device), []).append(replace(each, device=device))
    return [_worst(group) if len(group) > 1 else group[0] for group in groups.values()]


def _worst(group: list[Judged]) -> Judged:
    verdicts = [each.verdict for each in group]
    if set(verdicts) <= {Verdict.SKIP, Verdict.UNVERIFIED}:
        worst = max(verdicts, key=[Verdict.SKIP, Verdict.UNVERIFIED].index)
    else:
        worst = fold(verdicts)
    reasons = dict.fromkeys(each.reason for each in group if each.verdict is worst)
    return replace(group[0], verdict=worst, reason="; ".join(reasons), value=None, unit=None)
