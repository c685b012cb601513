"""A run: all results of one call, as the document ``portagpu.result/1``."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from portagpu._version import __version__
from portagpu.base.environment import host_name, switched_on
from portagpu.base.errors import ResultError
from portagpu.base.files import read_bounded, write_atomic
from portagpu.base.text import one_line
from portagpu.facts.vendors import vendors
from portagpu.runs.results.advice import check_of, gravest_first
from portagpu.runs.results.plain import json_text, plain
from portagpu.runs.results.result import Result
from portagpu.runs.results.schema import RUN_ABSENT, RUN_RULES, SCHEMA, check_form, check_run
from portagpu.runs.results.verdicts import (
    FAILING,
    INTERRUPTED_EXIT_CODE,
    Evidence,
    Verdict,
    exit_code,
    fold,
    fold_area,
)
from portagpu.runs.results.wording import bounds, without_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = [
    "SCHEMA",
    "Evidence",
    "Result",
    "Run",
    "RunInfo",
    "Verdict",
    "bounds",
    "exit_code",
    "fold",
    "new_run",
    "read_json",
    "validate",
    "verdict_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Where, when and how a run was made.

    ``started`` is RFC 3339 with its zone, ``duration_s`` in seconds. ``area_duration_s`` is how
    long each gate of a bring-up took, which is more than the sum of its results. ``versions`` maps
    a component to its version, or to None if it has none. ``devices`` are objects of
    ``info --json``, each with at least a ``name``. ``strict`` and ``interrupted`` are recorded
    because the verdict depends on them. ``replay`` has an object with "name", "sha256" and "source"
    for each recording that was judged instead of a machine. ``switches`` has the variables of the
    environment under which a device or torch does not work as it does otherwise, with their values.
    ``error`` is what ended the run: its "message" and the command's "exit_code". ``seed`` is the
    number that all operands of a screen, or all random programs of the suite, are made from.
    """

    id: str
    started: str
    duration_s: float = 0.0
    area_duration_s: Mapping[str, float] = field(default_factory=dict)
    command: Sequence[str] = ()
    host: str = ""
    target: str | None = None
    backend: str | None = None
    versions: Mapping[str, str | None] = field(default_factory=dict)
    devices: Sequence[Mapping[str, Any]] = ()
    strict: bool = False
    interrupted: bool = False
    replay: Sequence[Mapping[str, str | None]] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        document = check_run(plain(given, "run"), "run")
        for key, value in document.items():
            object.__setattr__(self, key, tuple(value) if isinstance(value, list) else value)

    def to_json(self) -> dict[str, Any]:
        """The object ``run`` of the schema."""
        document = {key: getattr(self, key) for key in RUN_RULES}
        for key in RUN_ABSENT:
            if document[key] is None:
                del document[key]
        lists = {key: list(document[key]) for key in ("command", "devices", "replay")}
        return {**document, **lists}


@dataclass(slots=True)
class Run:
    """A run and its results so far; its verdict, counts and sentences are computed from them.

    Results keep the order in which they were added. A suite reports an id once per device.
    """

    info: RunInfo
    results: list[Result] = field(default_factory=list)
    _seen: set[tuple[str, str, str | None]] = field(default_factory=set, repr=False, compare=False)
    _clock_s: float = field(default_factory=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        initial, self.results = self.results, []
        self.extend(initial)

    def add(self, result: Result) -> Result:
        """Append ``result`` and return it; raises ResultError if its id was already reported."""
        key = (result.suite, result.id, result.device)
        if key in self._seen:
            where = f" on {result.device}" if result.device else ""
            raise ResultError(
                f"results[{len(self.results)}].id: {result.id}{where} was already reported"
            )
        self._seen.add(key)
        self.results.append(result)
        return result

    def extend(self, results: Sequence[Result]) -> None:
        """Append several results, in their order."""
        for result in results:
            self.add(result)

    def finish(self, *, interrupted: bool = False, duration_s: float | None = None) -> Run:
        """End the run, and return it.

        :param interrupted: whether something stopped it before its end.
        :param duration_s: seconds that it took; by default since it was made.
        """
        elapsed_s = time.monotonic() - self._clock_s if duration_s is None else duration_s
        self.info = replace(self.info, duration_s=round(elapsed_s, 6), interrupted=interrupted)
        return self

    def end_with(self, error_code: int, message: str) -> Run:
        """Finish the run as one that an error ended.

        :param error_code: the command's exit code.
        :param message: the error in one line.
        """
        self.finish(interrupted=error_code == INTERRUPTED_EXIT_CODE)
        if not self.info.interrupted:
            self.info = replace(self.info, error={"exit_code": error_code, "message": message})
        return self

    @property
    def verdict(self) -> Verdict:
        """The fold of the results; a run that was interrupted is INCONCLUSIVE at best.

        So is one that an error ended, and ERROR where the exit code says that something broke.
        """
        verdict = fold((r.verdict for r in self.results), strict=self.info.strict)
        if verdict in FAILING or not (self.info.interrupted or self.info.error):
            return verdict
        broke = self.info.error and self.info.error["exit_code"] == exit_code(Verdict.ERROR)
        return Verdict.ERROR if broke else Verdict.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """The exit code of the verdict or of the error; 130 for an interrupted run."""
        if self.info.interrupted:
            return INTERRUPTED_EXIT_CODE
        return self.info.error["exit_code"] if self.info.error else exit_code(self.verdict)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many results have each verdict, zeros included."""
        counted = Counter(result.verdict for result in self.results)
        return {verdict: counted[verdict] for verdict in Verdict}

    @property
    def first_failure(self) -> Result | None:
        """The first result that is FAIL or ERROR."""
        return next((result for result in self.results if result.failed), None)

    @property
    def first_failed(self) -> str | None:
        """The id of the first failure."""
        return self.first_failure.id if self.first_failure else None

    @property
    def culprit(self) -> str | None:
        """The device or rank of the first failure that names one."""
        return next((r.device for r in self.results if r.failed and r.device), None)

    @property
    def failures(self) -> list[Result]:
        """Every FAIL and ERROR, the most severe first."""
        return gravest_first(self.results)

    @property
    def next_step(self) -> str:
        """What to do about the most severe failure; empty without a failure or advice.

        The remedy of a finding, where it has one, says more than the advice for all of its suite.
        """
        if not self.failures:
            return ""
        check = check_of(self.failures[0])
        return str(self.failures[0].extra.get("remedy") or (check.do if check else ""))

    @property
    def why(self) -> str:
        """One sentence that explains the verdict; empty for a plain PASS.

        After a failure it is the most severe one, and how many more there are. Of a run that an
        error ended it is the error.
        """
        if self.info.error:
            return one_line(self.info.error["message"])
        if failures := self.failures:
            first, more = failures[0], len(failures) - 1
            where = f" on {first.device}" if first.device else ""
            other = f" ({first.verdict})" if first.verdict is not self.verdict else ""
            others = f" (and {_plural(more, 'more failure')})" if more else ""
            stopped = ", and then interrupted" if self.info.interrupted else ""
            return f"{first.id}{where}{other}: {without_device(first)}{others}{stopped}"
        unverified = self.counts[Verdict.UNVERIFIED]
        open_ = [r for r in self.results if r.verdict is Verdict.INCONCLUSIVE]
        if self.info.interrupted:
            done = _plural(len(self.results) - len(open_), "result")
            return f"interrupted after {done}" + (f", {len(open_)} not judged" if open_ else "")
        if open_:
            others = f" (and {len(open_) - 1} more)" if len(open_) > 1 else ""
            where = f" on {open_[0].device}" if open_[0].device else ""
            return f"{open_[0].id}{where}: {one_line(open_[0].reason)}{others}"
        if self.verdict is Verdict.INCONCLUSIVE:
            others = f", {unverified} unverified" if unverified else ""
            return f"nothing was judged{others}"
        if self.verdict is Verdict.UNVERIFIED:
            return f"{_plural(unverified, 'measure')} with nothing to judge by"
        return f"{unverified} unverified" if unverified else ""

    def summary_line(self) -> str:
        """The verdict, its sentence and the next step: "PASS, 14 unverified", "FAIL: ID on rank 2:
        reason; next: run it again"."""
        joint = ", " if self.verdict is Verdict.PASS else ": "
        step = f"; next: {self.next_step}" if self.next_step else ""
        return f"{self.verdict}{joint}{self.why}{step}" if self.why else str(self.verdict)

    def to_json(self) -> dict[str, Any]:
        """The document of the schema ``portagpu.result/1``."""
        return {
            "schema": SCHEMA,
            **self._conclusions(),
            "run": self.info.to_json(),
            "results": [result.to_json() for result in self.results],
        }

    @classmethod
    def from_json(cls, document: object, *, fresh: bool = False) -> Run:
        """The run that a document describes.

        :param document: the values of its JSON.
        :param fresh: whether the document may be kept and not copied.
        :raises ResultError: with the path of a key that is missing, unknown, of another type, or
            contradicts the results.
        """
        whole = check_form(document)
        run = cls(RunInfo(**whole["run"]))
        for index, result in enumerate(whole["results"]):
            run.add(Result.of_checked(result, f"results[{index}]", fresh=fresh))
        for key, computed in run._conclusions().items():
            if whole[key] != computed:
                raise ResultError(f"{key}: is {whole[key]!r}, but the results give {computed!r}")
        return run

    def _conclusions(self) -> dict[str, Any]:
        """The keys of a document that follow from its results."""
        return {
            "verdict": str(self.verdict),
            "counts": {str(verdict): count for verdict, count in self.counts.items()},
            "first_failed": self.first_failed,
            "culprit": self.culprit,
        }

    def to_text(self, *, ascii_only: bool = False) -> str:
        """The document as JSON text, with one line per result."""
        document = self.to_json()
        results = document.pop("results")
        head = json_text(document, indent=2, ascii_only=ascii_only)
        lines = ",".join("\n    " + json_text(result, ascii_only=ascii_only) for result in results)
        tail = f"[{lines}\n  ]" if results else "[]"
        return head.removesuffix("\n}") + f',\n  "results": {tail}\n}}\n'

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the document to ``path``, whole or not at all; raises OutputError."""
        return write_atomic(path, self.to_text())

    def dump(self, stream: IO[str]) -> None:
        """Write the document to a text stream in ASCII, which every encoding can represent."""
        stream.write(self.to_text(ascii_only=True))


def new_run(
    command: Sequence[str] = (),
    *,
    target: str | None = None,
    backend: str | None = None,
    versions: Mapping[str, str | None] | None = None,
    devices: Sequence[Mapping[str, Any]] = (),
    host: str | None = None,
    strict: bool = False,
    replay: Sequence[Mapping[str, str | None]] = (),
) -> Run:
    """A run that starts now, with a new id and no results.

    :param command: The words of the command line that makes the run.
    :param target: The id of the target that the run judges by.
    :param backend: The name of the backend whose devices it uses.
    :param versions: A component and its version, None where it has none; portagpu's own is added.
    :param devices: Objects of ``info --json``, each with at least a ``name``.
    :param host: The name of the machine; by default that of this one.
    :param strict: Whether an UNVERIFIED result lowers PASS to UNVERIFIED.
    :param replay: For each recording that is judged instead of a machine its "name", "sha256" and
        "source".
    :returns: The run, whose clock has started: ``Run.finish`` sets its duration.
    :raises ResultError: A value is not what the schema allows; the message names the key.
    """
    now = datetime.now(UTC)
    on = switched_on(os.environ, (each for one in vendors().values() for each in one.switches))
    info = RunInfo(
        id=f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}",
        started=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        host=host_name() if host is None else host,
        target=target,
        backend=backend,
        versions={"portagpu": __version__, **(versions or {})},
        devices=devices,
        strict=strict,
        replay=replay,
        switches={} if replay else {each.variable: os.environ[each.variable] for each in on},
    )
    return Run(info)


def verdict_of(results: Sequence[Result]) -> Verdict:
    """The verdict of a gate or an area from its results."""
    return fold_area(result.verdict for result in results)


def validate(document: object) -> None:
    """Raise ResultError, naming the key, unless ``document`` follows ``portagpu.result/1``."""
    Run.from_json(document)


MAX_BYTES: Final = 64 << 20
"""Of a file; a full run of eight devices is a few megabytes."""


def read_json(path: str | os.PathLike[str]) -> Run:
    """The run in a file; raises ResultError with the file, and the key that is wrong.

    ``portagpu.reports.bundles.document`` reads bundles and folders too.
    """
    try:
        document, fresh = parse_json(read_bounded(path, MAX_BYTES + 1))
        return Run.from_json(document, fresh=fresh)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from error


class Fresh(NamedTuple):
    """JSON that was just parsed, not yet checked.

    Where it is ``fresh``, it is in the form that ``plain`` gives: all of its numbers are finite,
    and no text has a lone surrogate. Nobody else holds it, so that a run may keep parts of it.
    Another document may be so too: its text only looks as if it might not.
    """

    document: Any
    fresh: bool


_DIGITS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_HUGE: Final = re.compile(rb"0e\+?000")
"""A number that may be too large, with every digit as 0; few other texts have that form."""
_TOO_MANY_DIGITS: Final = b"0" * 309


def parse_json(data: bytes) -> Fresh:
    """The JSON of a file; raises ResultError."""
    if len(data) > MAX_BYTES:
        raise ResultError(f"is larger than {MAX_BYTES >> 20} MiB")
    constants: list[str] = []

    def constant(word: str) -> float:
        constants.append(word)
        return float(word)

    document = _parsed_fast(data)
    if document is None:
        try:
            document = json.loads(data.decode(), parse_constant=constant)
        except RecursionError:
            raise ResultError("is nested too deeply") from None
        except ValueError as error:
            raise ResultError(f"is not JSON, or was cut off: {error}") from error
    digits = data.translate(_DIGITS)
    huge = _HUGE.search(digits) or _TOO_MANY_DIGITS in digits
    # half a surrogate has no other form in UTF-8
    half = b"\\u" in data and (b"\\ud" in data or b"\\uD" in data)
    return Fresh(document, not (constants or huge or half))


LARGE: Final = 32 << 10
"""Of a file for which msgspec is worth its import."""


def _parsed_fast(data: bytes) -> Any:
    """What msgspec reads of a large file; None where it is not installed or refuses the text.

    What it reads is equal to what ``json`` reads. It refuses more, such as NaN.
    """
    if len(data) < LARGE:
        return None
    try:
        import msgspec
    except ImportError:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
