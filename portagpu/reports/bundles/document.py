"""Files of results: what one of them holds, and which of them a folder has.

``docs/results.md`` states the rule. Every verb that takes results reads them here.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from portagpu.base.documents import DocumentError, decode, encode
from portagpu.base.errors import ResultError
from portagpu.base.files import read_bounded, write_atomic
from portagpu.base.text import one_line
from portagpu.reports.bundles.content import SCHEMA, sha256
from portagpu.runs.ledger import Clearance, Relief, instant
from portagpu.runs.results.run import LARGE, MAX_BYTES, Run, parse_json
from portagpu.runs.results.schema import SCHEMA as RESULT
from portagpu.runs.results.schema import check_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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


CLEARANCE: Final = "portagpu.clearance/1"
_NOT_OF_A_NAME: Final = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """``at`` is RFC 3339 with its zone; the other keys are those of ``Clearance``."""

    node: str
    device: str
    at: str
    what: Relief
    reason: str
    schema: str = CLEARANCE


def parse_clearance(document: object, now: datetime) -> Clearance:
    """The clearance in a document; raises ResultError, also for one that is in the future."""
    try:
        read = decode(_Document, document, "clearance")
        moment = datetime.fromisoformat(read.at)
    except (DocumentError, ValueError) as error:
        raise ResultError(str(error)) from error
    if moment.tzinfo is None:
        raise ResultError(f"clearance.at: is {read.at}, without a zone: end it with Z for UTC")
    if not read.reason.strip():
        raise ResultError("clearance.reason: is empty: write why the failures no longer count")
    if wrong := wrong_clock(read.at, now):
        raise ResultError(wrong.replace("run.started", "clearance.at"))
    return Clearance(
        node=read.node,
        device=read.device,
        at_s=instant(read.at),
        what=read.what,
        reason=read.reason,
    )


def write_clearance(
    folder: Path, *, node: str, device: str, what: Relief, reason: str, now: datetime
) -> Path:
    """Write the document into ``folder`` and return its file.

    :param folder: of the results whose failures it clears
    :param node: the host's name in the results
    :param device: the device's identity in the results; empty for all devices of the node
    :param what: whether the device was replaced, or examined and cleared
    :param reason: what was done, in one line
    :param now: the time of the clearance, in UTC
    :raises OutputError: if the file cannot be written
    """
    document = _Document(
        node=node, device=device, at=f"{now:%Y-%m-%dT%H:%M:%S.%fZ}", what=what, reason=reason
    )
    named = _NOT_OF_A_NAME.sub("-", node)[:80]
    path = folder / f"clearance-{now:%Y%m%dT%H%M%S%fZ}-{named}.json"
    return write_atomic(path, json.dumps(encode(document), indent=1) + "\n")


WHOLE: Final = "result.json"
"""What ``--out`` writes. A bundle of the same run next to it does not count again."""
_WRITTEN_TOO: Final = frozenset({"junit.xml", "ocp.jsonl", "report.html"})
"""What ``--out`` and ``portagpu report`` write next to it, from the same run."""


@dataclass(frozen=True)
class Document:
    """A run as it stood in its file.

    ``data`` is the file byte for byte, and ``schema`` says whether it is a result or a bundle.
    """

    run: Run
    data: bytes
    schema: str
    path: Path
    raw: Any = field(repr=False, compare=False)
    """The values of its JSON, of which the run may hold parts: nobody changes them."""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its canonical form, which does not depend on line breaks."""
        return sha256(self.raw, fast=len(self.data) >= LARGE)

    @property
    def is_bundle(self) -> bool:
        """Whether it was validated as a bundle, and names of machines were removed from it."""
        return self.schema == SCHEMA


class OtherDocument(ResultError):
    """JSON that is neither a result nor a bundle: it is left aside in a folder.

    ``clearance`` is what it says where it is one.
    """

    clearance: Clearance | None = None


class Aside(NamedTuple):
    """What a place holds and does not count, and why, in one line."""

    path: Path
    reason: str


@dataclass(slots=True)
class Others:
    """What places hold next to results: clearances of devices, and what does not count."""

    clearances: list[Clearance] = field(default_factory=list)
    aside: list[Aside] = field(default_factory=list)


def read_files(
    places: Iterable[Path], now: datetime | None = None, others: Others | None = None
) -> list[Document]:
    """The documents of files and folders in their order; a file that is named twice counts once.

    With ``now``, a run whose times contradict each other or that moment does not count: whoever
    puts runs in order believes their clocks. It is added to ``others``, and so is what
    :func:`find_files` and a folder leave out. Raises ResultError in one line that begins with the
    path: for the first file that is wrong, for a place without results, for places without one
    that counts, and for two files with one run.
    """
    others = Others() if others is None else others
    documents: dict[Path, Document] = {}
    wrong_clocks: list[Aside] = []
    for place in places:
        inside = dict(_inside(place, documents, others))
        if not inside:
            raise ResultError(f"{one_line(str(place))}: no file in this folder is a result")
        for path, document in inside.items():
            try:
                if now is not None:
                    check_times(document.run, now)
            except ResultError as error:
                wrong_clocks.append(Aside(path, one_line(str(error))))
            else:
                documents[path] = document
    if wrong_clocks and not documents:
        raise ResultError(f"{one_line(str(wrong_clocks[0].path))}: {wrong_clocks[0].reason}")
    others.aside += wrong_clocks
    files: dict[str, Path] = {}
    for path, document in documents.items():
        id_ = document.run.info.id
        if (other := files.setdefault(id_, path)) != path:
            raise ResultError(
                f"{one_line(str(other))} and {one_line(str(path))} both hold the run "
                f"{one_line(id_)}{_of_two_machines(documents[other], document)}: name one of them"
            )
    return list(documents.values())


def find_files(
    places: Iterable[Path], aside: list[Aside] | None = None
) -> Iterator[tuple[Path, bool]]:
    """Each file that may be a result, and whether it was named itself.

    Of a folder these are the files ``*.json`` in it and below it, in the order of their names,
    ``result.json`` before the others. Links to folders and other files are added to ``aside``,
    except what ``--out`` writes. A folder that cannot be read stands for itself, so that reading
    it says why.
    """
    aside = [] if aside is None else aside
    for place in places:
        if not os.path.isdir(place):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
            yield place, True
            continue
        unreadable: list[OSError] = []
        for folder, folders, names in os.walk(place, onerror=unreadable.append):
            folders.sort()
            linked = [Path(folder, each) for each in folders if Path(folder, each).is_symlink()]
            aside += (
                Aside(each, "is a link to a folder, which is not followed") for each in linked
            )
            for name in sorted(names, key=lambda each: (each != WHOLE, each)):
                if name.endswith(".json"):
                    yield Path(folder, name), False
                elif name not in _WRITTEN_TOO:
                    aside.append(Aside(Path(folder, name), "is not JSON"))
        for error in unreadable:
            yield Path(error.filename), True


def same_run(path: Path, whole: str | None) -> bool:
    """Whether a file is a bundle of the run ``whole``, whose ``result.json`` is next to it.

    The file is not validated.
    """
    return whole is not None and path.name != WHOLE and _claimed(path) == (SCHEMA, whole)


def claimed_run(path: Path) -> str | None:
    """The run that a file says it holds, not validated; None where it says none."""
    return _claimed(path)[1]


def _claimed(path: Path) -> tuple[str | None, str | None]:
    """The schema and the run of a file, as it says them."""
    try:
        raw = parse_json(read_bounded(path, MAX_BYTES + 1))[0]
        schema = raw["schema"]
        return schema, str((raw["result"] if schema == SCHEMA else raw)["run"]["id"])
    except (OSError, ResultError, LookupError, TypeError):
        return None, None


def read_file(path: Path) -> Document:
    """The document in a file; raises ResultError that begins with the path, and OtherDocument."""
    try:
        return parse(read_bounded(path, MAX_BYTES + 1), path)
    except OSError as error:
        why = error.strerror or error
        raise ResultError(f"{one_line(str(path))}: cannot be read: {why}") from error
    except ResultError as error:
        named = type(error)(f"{one_line(str(path))}: {one_line(str(error))}")
        if isinstance(error, OtherDocument) and isinstance(named, OtherDocument):
            named.clearance = error.clearance
        raise named from error


def parse(data: bytes, path: Path) -> Document:
    """The document that ``data`` holds, validated.

    Raises ResultError, BundleError for a bundle that is not valid, and OtherDocument.
    """
    raw, fresh = parse_json(data)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    for own in (RESULT, SCHEMA):
        if isinstance(schema, str) and schema.startswith(f"{own.rpartition('/')[0]}/"):
            check_version(schema, "schema", own)
    if schema == SCHEMA:
        # which loads every engine, to know its ids; most files are results
        from portagpu.reports.bundles import check

        result, fresh = check.parse(data)["result"], False
    elif schema == RESULT:
        result = raw
    elif schema == CLEARANCE:
        other = OtherDocument("is a clearance of a device, not a result")
        other.clearance = parse_clearance(raw, datetime.now(UTC))
        raise other
    else:
        raise OtherDocument("is neither a result, as --json and --out write it, nor a bundle")
    return Document(Run.from_json(result, fresh=fresh), data, schema, path, raw)


def _of_two_machines(one: Document, other: Document) -> str:
    """What two hosts of one run mean; empty where they may be one. A bundle names no host."""
    hosts = [one_line(each.run.info.host) for each in (one, other)]
    if hosts[0] == hosts[1] or one.is_bundle or other.is_bundle:
        return ""
    return f" for two machines, {hosts[0]!r} and {hosts[1]!r}, so one was edited or copied"


def _inside(
    place: Path, known: Mapping[Path, Document], others: Others
) -> Iterator[tuple[Path, Document]]:
    whole: dict[Path, str] = {}
    for path, named in find_files([place], others.aside):
        if same_run(path, None if named else whole.get(path.parent)):
            continue
        try:
            document = known.get(path) or read_file(path)
        except OtherDocument as error:
            if error.clearance is not None:
                others.clearances.append(error.clearance)
            elif named:
                raise
            else:
                reason = str(error).removeprefix(f"{one_line(str(path))}: ")
                others.aside.append(Aside(path, reason))
            continue
        if path.name == WHOLE:
            whole[path.parent] = document.run.info.id
        yield path, document
