"""A result or a bundle from a file, checked for what no store may hold."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from portagpu.bundle import check
from portagpu.bundle.document import SCHEMA as BUNDLE_SCHEMA
from portagpu.bundle.document import file_name, sha256
from portagpu.errors import PortagpuError, ResultError
from portagpu.files import read_bounded
from portagpu.history.model import MeasureId
from portagpu.results.run import Run
from portagpu.results.schema import SCHEMA as RESULT_SCHEMA
from portagpu.text import excerpt, one_line

if TYPE_CHECKING:
    import os

    from portagpu.results.run import Result

LARGEST_BYTES: Final = 64 << 20
"""As for every result document; a bundle may have 16 MiB."""
_FUTURE: Final = timedelta(minutes=10)
"""Clocks of two machines differ by less; a wrong time zone is at least 15 minutes."""
_OLDEST: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Older than any such document: a clock that was never set begins in 1970 or at a build's day."""
_ROUNDING_S: Final = 1.0
_LONGEST: Final = 2000
"""An index of PostgreSQL takes 2704 bytes: BTMaxItemSize of its nbtree.h."""
_MOST_SAMPLES: Final = 2**31 - 1
_TIME_OF_ID: Final = re.compile(r"(\d{8}T\d{6})Z-[0-9a-f]{8}")
"""How ``new_run`` makes an id."""


@dataclass(frozen=True, slots=True)
class Document:
    """A run as it stood in its file.

    ``data`` is the file byte for byte, ``schema`` says whether it is a result or a bundle, and
    ``digest`` is the SHA-256 of its canonical form, which does not depend on line breaks.
    """

    run: Run
    data: bytes
    schema: str
    digest: str

    @property
    def started_s(self) -> float:
        """When the run began, in seconds since 1970, UTC."""
        return _started(self.run).timestamp()

    @property
    def is_bundle(self) -> bool:
        """Whether names of machines were removed from it."""
        return self.schema == BUNDLE_SCHEMA

    @property
    def measures(self) -> dict[MeasureId, Result]:
        """Every result with a number, by what was measured; none of a recording.

        What a recording says is of another machine than the one that judged it.
        """
        if self.run.info.replay:
            return {}
        return {measured(each): each for each in self.run.results if is_measure(each)}


def is_measure(result: Result) -> bool:
    """Whether a result has a number."""
    return isinstance(result.value, int | float)


def measured(result: Result) -> MeasureId:
    """What a result with a number measured."""
    return MeasureId(result.suite, result.id, result.device, str(result.unit), result.statistic)


class OtherDocument(ResultError):
    """A JSON file that is neither a result nor a bundle: it is passed over in a folder."""


class OtherRun(ResultError):
    """The id of a run is that of another run in the store."""


def read_document(path: str | os.PathLike[str], now: datetime | None = None) -> Document:
    """The result or the bundle in a file; raises ResultError that begins with the path.

    It is refused where ``portagpu.results`` or ``portagpu.bundle`` refuses it (a unit is missing, a
    number is not finite, a digest does not fit), and where its times contradict each other or
    ``now``, which is this moment by default.
    """
    try:
        document = parse_document(read_bounded(path, LARGEST_BYTES + 1))
        check_times(document.run, now or datetime.now(UTC))
        check_sizes(document)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from error
    except OtherDocument as error:
        raise OtherDocument(f"{path}: {error}") from error
    except PortagpuError as error:
        raise ResultError(f"{path}: {one_line(str(error))}") from error
    return document


def parse_document(data: bytes) -> Document:
    """The document that ``data`` holds; raises ResultError."""
    if len(data) > LARGEST_BYTES:
        raise ResultError(f"is larger than {LARGEST_BYTES >> 20} MiB")
    try:
        raw = json.loads(data.decode())
    except RecursionError:
        raise ResultError("is nested too deeply") from None
    except ValueError as error:
        raise ResultError(f"is not JSON, or was cut off: {error}") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema == BUNDLE_SCHEMA:
        raw = check.parse(data)
        return Document(Run.from_json(raw["result"]), data, schema, sha256(raw))
    if schema == RESULT_SCHEMA:
        return Document(Run.from_json(raw), data, schema, sha256(raw))
    if isinstance(schema, str) and schema.startswith(("portagpu.result/", "portagpu.bundle/")):
        raise ResultError(
            f"has the schema {one_line(schema)}; this version reads {RESULT_SCHEMA} and "
            f"{BUNDLE_SCHEMA}"
        )
    raise OtherDocument("is no result, as --json writes it, and no bundle")


def check_times(run: Run, now: datetime) -> None:
    """Raise ResultError for a run whose clock was wrong or jumped.

    ``duration_s`` comes from a clock that cannot jump. No result takes longer than its run, unless
    the document was put together by hand.
    """
    started = _started(run)
    if started > now + _FUTURE:
        raise ResultError(
            f"run.started: is {run.info.started}, in the future: the clock of that machine or of "
            "this one is wrong"
        )
    if started < _OLDEST:
        raise ResultError(
            f"run.started: is {run.info.started}: the clock of that machine was not set"
        )
    if found := _TIME_OF_ID.fullmatch(run.info.id):
        named = datetime.strptime(found[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        if abs(named - started) > _FUTURE:
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


def check_sizes(document: Document) -> None:
    """Raise ResultError for what a database cannot hold, and no program writes."""
    info = document.run.info
    if "\0" in info.host:
        raise ResultError("run.host: holds a null character")
    for key, text in (("run.id", info.id), ("run.host", info.host), ("run.target", info.target)):
        if len((text or "").encode()) > _LONGEST:
            raise ResultError(f"{key}: is longer than {_LONGEST} bytes")
    for what, result in document.measures.items():
        if sum(len((part or "").encode()) for part in what) > _LONGEST:
            raise ResultError(f"{excerpt(what.id)}: its names are longer than {_LONGEST} bytes")
        if (result.n or 0) > _MOST_SAMPLES:
            raise ResultError(f"{what.id}: n is more than {_MOST_SAMPLES}")


def same_measurement(one: Document, other: Document) -> bool:
    """Whether one of them is the bundle of the other: only names of machines were removed."""
    if one.is_bundle == other.is_bundle:
        return False
    facts = [
        (each.run.info.started, each.run.info.target, str(each.run.verdict), each.run.counts)
        for each in (one, other)
    ]
    values = [_values(each) for each in (one, other)]
    return facts[0] == facts[1] and values[0] == values[1]


def file_name_of(data: bytes, digest: str) -> str:
    """The name of a document's file outside a store: from its day and its digest.

    Raises ValueError where ``data`` is no such document, or its digest is another.
    """
    raw: dict[str, Any] = json.loads(data)
    if sha256(raw) != digest:
        raise ValueError("its digest is another")
    if raw["schema"] == BUNDLE_SCHEMA:
        return file_name(raw)
    return f"{datetime.fromisoformat(raw['run']['started']):%Y%m%d}-{digest[:16]}.json"


def _values(document: Document) -> list[tuple[str, str, float | str | None]]:
    # a device may have been renamed, and the results keep their order
    numbers = (each for each in document.run.results if is_measure(each))
    return [(each.suite, each.id, each.value) for each in numbers]


def _started(run: Run) -> datetime:
    return datetime.fromisoformat(run.info.started)
