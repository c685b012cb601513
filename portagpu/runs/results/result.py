"""One judged item: the object ``results[]`` of the document ``portagpu.result/1``.

A value that is not finite is written as null. The reason then says what was measured, and a PASS or
UNVERIFIED becomes ERROR, because a measure without a number judged nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import printable, printable_lines
from portagpu.runs.results.plain import plain
from portagpu.runs.results.schema import RESULT_RULES, check_result
from portagpu.runs.results.verdicts import FAILING, Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_VERDICTS: Final = {str(each): each for each in Verdict}
_EVIDENCE: Final = {str(each): each for each in Evidence}
_UNJUDGED_NUMBER: Final = frozenset({Verdict.PASS, Verdict.UNVERIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One check or measure on one device.

    ``id`` is stable across runs and targets; ``device`` names the device or rank ("cuda:3",
    "rank 2") where there is more than one to blame. ``value`` and ``spread`` are in ``unit``
    ("1" for a plain number; a value in words has none), ``spread`` is the median absolute deviation
    of the ``n`` samples that ``statistic`` ("median", "min", ...) condenses; ``duration_s`` is in
    seconds. ``expected`` is
    ReFrame's expectation, see ``bounds``. FAIL, ERROR, INCONCLUSIVE and SKIP need a ``reason``;
    ``blocked_by`` is the id of the result that kept an INCONCLUSIVE one from running.
    ``does_not_show`` is a sentence on what the evidence leaves open. ``extra`` may hold "curve",
    "curves" and "samples" (docs/results.md). Raises ResultError naming the key that is wrong.
    """

    id: str
    suite: str
    area: str
    verdict: Verdict
    evidence: Sequence[Evidence] = ()
    device: str | None = None
    value: float | str | None = None
    unit: str | None = None
    statistic: str | None = None
    n: int | None = None
    spread: float | None = None
    expected: Mapping[str, Any] | None = None
    shape: str | Sequence[int] | Mapping[str, int | str] | None = None
    reason: str = ""
    blocked_by: str | None = None
    does_not_show: str = ""
    duration_s: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raw = {f.name: getattr(self, f.name) for f in fields(self)}
        document = _plain_result(raw, self.id if isinstance(self.id, str) else "result")
        check_result(document, str(document["id"] or "result"))
        self._set(document)

    def _set(self, document: dict[str, Any]) -> None:
        document["verdict"] = _VERDICTS[document["verdict"]]
        document["evidence"] = tuple(_EVIDENCE[badge] for badge in document["evidence"])
        put = object.__setattr__
        for key, value in document.items():
            put(self, key, value)

    @property
    def failed(self) -> bool:
        """True for FAIL and ERROR."""
        return self.verdict in FAILING

    @property
    def origin(self) -> tuple[str, str]:
        """The suite and the area that it comes from, before a bring-up took it over."""
        suite = self.extra.get("suite")
        if suite is None:
            return self.suite, self.area
        return str(suite), str(self.extra.get("area", self.id.partition("/")[0]))

    def to_json(self) -> dict[str, Any]:
        """The result as an object of the schema, with every key."""
        document = {key: getattr(self, key) for key in RESULT_RULES}
        return {**document, "verdict": str(self.verdict), "evidence": list(map(str, self.evidence))}

    @classmethod
    def from_json(cls, document: object, path: str = "result") -> Result:
        """The result that an object of the schema describes.

        :param document: the values of its JSON.
        :param path: where it is in the document, for errors: "results[3]".
        :raises ResultError: with the key that is missing, unknown or wrong.
        """
        return cls.of_checked(check_result(document, path), path)

    @classmethod
    def of_checked(cls, document: Mapping[str, Any], path: str, *, fresh: bool = False) -> Result:
        """The result of an object that ``check_result`` has accepted.

        It is checked again only where its text had to be changed.

        :param document: the values of its JSON.
        :param path: where it is in the document, for errors: "results[3]".
        :param fresh: whether the document may be kept and not copied, as ``Fresh`` says.
        :raises ResultError: with the key that is wrong after the change.
        """
        if fresh:
            own = _printable(dict(document))
        else:
            own = _plain_result(
                {**document, "extra": plain(document["extra"], f"{path}.extra")}, path
            )
        if own != document:
            check_result(own, path)
        made = object.__new__(cls)
        made._set(own)
        return made


def _plain_result(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """The fields in JSON's form, without numbers that are not finite."""
    lost = []
    for key in ("value", "spread"):
        number = raw[key] is not None and not isinstance(raw[key], str)
        if number and plain([raw[key]], f"{path}.{key}", gaps=True) == [None]:
            lost.append(f"{key} {float(raw[key])}")
            raw[key] = None
    if lost:
        note = f"measured {', '.join(lost)}, which is not a finite number"
        raw["reason"] = f"{raw['reason']}; {note}" if raw["reason"] else note
        if raw["verdict"] in _UNJUDGED_NUMBER:
            raw["verdict"] = Verdict.ERROR
    extra = plain(raw.pop("extra"), f"{path}.extra", gaps=True)
    return _printable(
        {**{key: plain(value, f"{path}.{key}") for key, value in raw.items()}, "extra": extra}
    )


def _printable(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with its texts changed to what a terminal can show."""
    for key in ("id", "device", "value"):
        if isinstance(document[key], str):
            document[key] = printable(document[key]) or None
    if isinstance(document["expected"], dict):
        wanted = document["expected"]
        document["expected"] = {
            key: printable(text) if isinstance(text, str) else text for key, text in wanted.items()
        }
    for key in ("reason", "does_not_show"):
        text = document[key]
        if isinstance(text, str):
            # text of a device or of another package may hold control sequences of terminals
            document[key] = printable_lines(text)
    return document
