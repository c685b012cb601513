"""What a rule says of a value before it is a result of a suite: judgements and findings."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import rule_of
from portagpu.base.text import MAX_NAMED, printable
from portagpu.facts.actions import Action
from portagpu.runs.results.advice import severities
from portagpu.runs.results.result import Result
from portagpu.runs.results.verdicts import Verdict, fold
from portagpu.runs.results.wording import exactly, expected_in_words, value_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_OWN: Final = ("severity", "action", "action_source", "also")
_SHARED: Final = ("verdict", "reason", "device", "value", "unit", "expected")
"""The fields that it has in common with a result."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason, and the check and device that it is about.

    ``value`` is what was seen, in ``unit`` as results write it ("1" for a count, None for words).
    ``expected`` is what it was compared with (``portagpu.runs.results.wording``).
    """

    verdict: Verdict
    reason: str = ""
    value: float | str | None = None
    unit: str | None = None
    expected: Mapping[str, Any] | None = None
    _: KW_ONLY
    name: str = ""
    """The check; empty where the caller knows which one it is."""
    device: str | None = None
    """The culprit's address or name; None where all are well."""
    severity: str | None = None
    """One of ``portagpu.runs.results.advice``; None where it is that of the check."""
    action: Action | None = None
    """What to do; None where it is that of the check."""
    action_source: str | None = None
    """The document that ``action`` is from."""
    also: str | None = None
    """Reasons of less grave judgements of the same check and device, which a worse one hides."""

    @property
    def fields(self) -> dict[str, Any]:
        """Those of a result; ``extra`` has what it says for itself, and not by its check."""
        own = {key: getattr(self, key) for key in _OWN}
        extra = {key: str(value) for key, value in own.items() if value is not None}
        return {key: getattr(self, key) for key in _SHARED} | {"extra": extra}


def combine(judgements: Iterable[Judgement]) -> list[Judgement]:
    """One judgement of each name and device: the worst verdict, and every reason for it.

    Two links of one GPU may be down, and a log holds several kinds of errors.
    """
    groups: dict[tuple[str, str | None], list[Judgement]] = {}
    for each in judgements:
        # as results write it: a device's own name may hold what no terminal can show
        device = printable(each.device or "") or None
        groups.setdefault((each.name, device), []).append(replace(each, device=device))
    return [_join_worst(group) if len(group) > 1 else group[0] for group in groups.values()]


def _join_worst(group: list[Judgement]) -> Judgement:
    verdicts = [each.verdict for each in group]
    if set(verdicts) <= {Verdict.SKIP, Verdict.UNVERIFIED}:
        worst = max(verdicts, key=[Verdict.SKIP, Verdict.UNVERIFIED].index)
    else:
        worst = fold(verdicts)
    members = [each for each in group if each.verdict is worst]
    reasons = dict.fromkeys(each.reason for each in members)
    named = [each.severity for each in members if each.severity is not None]
    gravest = min(named, key=lambda name: severities()[name].rank, default=None)
    asking = max(
        (each for each in members if each.action is not None),
        key=lambda each: each.action or Action.NONE,
        default=members[0],
    )
    below = dict.fromkeys(
        each.reason
        for each in group
        if each not in members and each.verdict in (Verdict.UNVERIFIED, Verdict.INCONCLUSIVE)
    )
    joined = replace(
        members[0],
        reason="; ".join(reasons),
        also="; ".join(below) or None,
        severity=gravest,
        action=asking.action,
        action_source=asking.action_source,
    )
    return joined if len(members) == 1 else _with_all_values(joined, members)


def _with_all_values(joined: Judgement, members: Sequence[Judgement]) -> Judgement:
    """``joined`` with all values: the sum of counts of one kind, or else a text of all."""
    first = members[0]
    counts = [each.value for each in members if isinstance(each.value, int | float)]
    is_one_kind = all((each.unit, each.expected) == ("1", first.expected) for each in members)
    if is_one_kind and len(counts) == len(members):
        return replace(joined, value=sum(counts))
    shown = [value_in_words(each.value, each.unit) for each in members]
    wanted = [each.expected for each in members if each.expected is not None]
    expected = None
    if wanted:
        words = "; ".join(dict.fromkeys(expected_in_words(each) for each in wanted))
        sources = "; ".join(dict.fromkeys(each["source"] for each in wanted))
        expected = exactly(words, sources)
    value = "; ".join(dict.fromkeys(each for each in shown if each)) or None
    return replace(joined, value=value, unit=None, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A kind of finding: what it means, its usual cause, what to do, and where that is written."""

    id: str
    verdict: Verdict
    means: str
    cause: str
    remedy: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. ``evidence`` is a sentence on what was read.

    ``device`` is what is to blame ("rank 2"). ``cause``, ``remedy`` and ``verdict`` replace those
    of its kind where more is known. ``value``, ``unit`` and ``expected`` are those of a result.
    """

    id: str
    evidence: str
    device: str | None = None
    cause: str = ""
    remedy: str = ""
    verdict: Verdict | None = None
    value: float | str | None = None
    unit: str | None = None
    expected: Mapping[str, Any] | None = None


def kinds_of(table: Mapping[str, Any]) -> dict[str, Known]:
    """The kinds of a table by id. Raises DocumentError for a wrong one."""
    kinds = rule_of(tuple[Known, ...]).read(table.get("finding", ()), "finding")
    return {each.id: each for each in kinds}


def combine_findings(findings: Iterable[Finding]) -> list[Finding]:
    """One finding of each kind and device, with the evidence of all of them: results are unique."""
    groups: dict[tuple[str, str | None], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.id, each.device), []).append(each)
    return [replace(group[0], evidence=_all_evidence(group)) for group in groups.values()]


def _all_evidence(group: Sequence[Finding]) -> str:
    sentences = list(dict.fromkeys(each.evidence for each in group))
    more = f"; and {len(sentences) - MAX_NAMED} more" if len(sentences) > MAX_NAMED else ""
    return "; ".join(sentences[:MAX_NAMED]) + more


def result_of(finding: Finding, kind: Known, suite: str, area: str) -> Result:
    """The finding as a result; ``extra`` has its cause, remedy and source."""
    return Result(
        id=f"{suite}/{area}/{finding.id}",
        suite=suite,
        area=area,
        verdict=kind.verdict if finding.verdict is None else finding.verdict,
        device=finding.device,
        value=finding.value,
        unit=finding.unit,
        expected=finding.expected,
        reason=finding.evidence,
        extra={
            "cause": finding.cause or kind.cause,
            "remedy": finding.remedy or kind.remedy,
            "source": kind.source,
        },
    )
