"""Documents for a store: checked for what no store may hold, and compared with those it has."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import ResultError
from portagpu.base.text import excerpt, one_line
from portagpu.reports.bundles.content import SCHEMA as BUNDLE_SCHEMA
from portagpu.reports.bundles.content import file_name, sha256
from portagpu.reports.bundles.document import Document, check_times, parse, read_file
from portagpu.reports.history.model import MeasureId

if TYPE_CHECKING:
    from portagpu.runs.results.run import Result, Run

_MAX_BYTES: Final = 2000
"""An index of PostgreSQL takes 2704 bytes: BTMaxItemSize of its nbtree.h."""
_MAX_SAMPLES: Final = 2**31 - 1


class OtherRun(ResultError):
    """The id of a run is that of another run in the store."""


def measures_of(run: Run) -> dict[MeasureId, Result]:
    """Every result with a number, by what was measured; none of a recording.

    What a recording says is of another machine than the one that judged it.
    """
    if run.info.replay:
        return {}
    return {measured(each): each for each in run.results if is_measure(each)}


def is_measure(result: Result) -> bool:
    """Whether a result has a number."""
    return isinstance(result.value, int | float)


def measured(result: Result) -> MeasureId:
    """What a result with a number measured."""
    return MeasureId(result.suite, result.id, result.device, str(result.unit), result.statistic)


def read_document(path: Path, now: datetime | None = None) -> Document:
    """The result or the bundle in a file; raises ResultError that begins with the path.

    It is refused where ``portagpu.reports.bundles.document`` refuses it (a unit is missing, a
    number is not finite, a digest does not fit), and where its times contradict each other or
    ``now``, which is this moment by default."""
    document = read_file(path)
    try:
        check_times(document.run, now or datetime.now(UTC))
        check_sizes(document.run)
    except ResultError as error:
        raise ResultError(f"{one_line(str(path))}: {one_line(str(error))}") from error
    return document


def check_sizes(run: Run) -> None:
    """Raise ResultError for what a database cannot hold, and no program writes."""
    info = run.info
    if "\0" in info.host:
        raise ResultError("run.host: holds a null character")
    for key, text in (("run.id", info.id), ("run.host", info.host), ("run.target", info.target)):
        if len((text or "").encode()) > _MAX_BYTES:
            raise ResultError(f"{key}: is longer than {_MAX_BYTES} bytes")
    for what, result in measures_of(run).items():
        if sum(len((part or "").encode()) for part in what) > _MAX_BYTES:
            raise ResultError(f"{excerpt(what.id)}: its names are longer than {_MAX_BYTES} bytes")
        if (result.n or 0) > _MAX_SAMPLES:
            raise ResultError(f"{what.id}: n is more than {_MAX_SAMPLES}")


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

    Raises ValueError where ``data`` is not such a document, or does not match its digest.
    """
    raw: dict[str, Any] = json.loads(data)
    if sha256(raw) != digest:
        raise ValueError("does not match its digest")
    if raw["schema"] == BUNDLE_SCHEMA:
        return file_name(raw)
    return f"{datetime.fromisoformat(raw['run']['started']):%Y%m%d}-{digest[:16]}.json"


def _values(document: Document) -> list[tuple[str, str, float | str | None]]:
    # a device may have been renamed, and the results keep their order
    numbers = (each for each in document.run.results if is_measure(each))
    return [(each.suite, each.id, each.value) for each in numbers]


def check_same(document: Document, data: bytes, name: str) -> None:
    """Raise OtherRun unless one of two documents with one id is the bundle of the other."""
    stored = parse(data, Path(name))
    if same_measurement(document, stored):
        return
    mine, theirs = document.run.info, stored.run.info
    id_ = one_line(mine.id)
    if mine.host != theirs.host and not document.is_bundle and not stored.is_bundle:
        raise OtherRun(
            f"run {id_} is of host {one_line(mine.host)!r}, and the store has it of host "
            f"{one_line(theirs.host)!r}: two machines have one id, so one document was edited or "
            "copied"
        )
    raise OtherRun(
        f"run {id_} is in the store as another document, of {theirs.started}: one of them was "
        "edited"
    )
