"""A store of runs in SQLite (a file) or PostgreSQL, through the same code.

Each document is one transaction. Writers wait for each other, and readers of SQLite for a commit.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from portagpu.base.errors import ResultError, StoreError
from portagpu.base.text import excerpt, one_line
from portagpu.reports.bundles.document import SCHEMA as BUNDLE_SCHEMA
from portagpu.reports.bundles.document import (
    Document,
    check_times,
    file_name,
    read_file,
    sha256,
)
from portagpu.reports.history.database import (
    DOCUMENTS,
    MEASURES,
    NAMES,
    PACKED,
    RUNS,
    lock,
    open_database,
    store_errors,
)
from portagpu.reports.history.model import JUDGED, Judged, Machine, MeasureId, Series, StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from portagpu.reports.history.database import Database
    from portagpu.runs.results.run import Result, Run


_MAX_BYTES: Final = 2000
"""An index of PostgreSQL takes 2704 bytes: BTMaxItemSize of its nbtree.h."""
_MAX_SAMPLES: Final = 2**31 - 1
_RUN_ID: Final = re.compile(rb'"run":\s*\{\s*"id":\s*"([^"\\]{1,200})"')
_HEAD_BYTES: Final = 64 << 10
"""Of a file, in which a writer of results puts the run's id."""


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


_YEAR_10000_S: Final = 253_402_300_800
_FEW: Final = 1000
"""So many runs are asked for one by one; for more, reading all of them is faster."""
MAX_VALUE: Final = 1e150
"""Of a value that is compared: no hardware comes near, and its square is still a number."""
NUMBERS: Final = np.dtype([("name", "<i4"), ("value", "<f8"), ("spread", "<f8")])
"""A measure in PACKED: the key of its name, value and spread in its unit; NaN for none."""


class Store:
    """An open store; a context manager. Made by :func:`open_store`.

    Every method raises StoreError where the database cannot be read or written.
    """

    def __init__(self, database: Database) -> None:
        self._engine = database.reader
        self._writer = database.writer
        self._shown = database.shown
        self._names: dict[MeasureId, int] = {}

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.dispose()

    def add(self, document: Document) -> bool:
        """Store a document; False where the store has it already, itself or as its bundle.

        Raises OtherRun where its id belongs to another run, and stores nothing then.
        """
        from portagpu.reports.bundles.document import started

        info = document.run.info
        measures = measures_of(document.run)
        with self._errors(), self._writer.begin() as connection:
            lock(connection)
            found = connection.execute(sa.select(RUNS).where(RUNS.c.id == info.id)).one_or_none()
            if found is not None:
                if found.digest != document.digest:
                    _check_same(document, *self._file(connection, found))
                return False
            values = {
                "id": info.id,
                "started_s": started(document.run).timestamp(),
                "host": info.host,
                "target": info.target,
                "backend": info.backend,
                "versions": json.dumps(dict(info.versions)),
                "verdict": str(document.run.verdict),
                "schema": document.schema,
                "digest": document.digest,
                "measures": len(measures),
            }
            made = connection.execute(sa.insert(RUNS).values(values).returning(RUNS.c.key))
            key = made.scalar_one()
            packed = zlib.compress(document.data, 6)
            connection.execute(sa.insert(DOCUMENTS).values(run=key, data=packed))
            names = self._keys(connection, list(measures))
            rows = [
                {
                    "name": names[what],
                    "run": key,
                    "value": float(result.value),  # type: ignore[arg-type]
                    "spread": result.spread,
                    "n": result.n,
                    "verdict": str(result.verdict),
                }
                for what, result in measures.items()
            ]
            if rows:
                connection.execute(sa.insert(MEASURES), rows)
            connection.execute(sa.insert(PACKED).values(run=key, data=_pack(rows)))
        # what a transaction that failed has made does not exist
        self._names = names
        return True

    def has_file(self, data: bytes) -> bool:
        """Whether the store has a file with exactly these bytes, which is found without reading it.

        The run's id is looked for in the text alone, so False says nothing.
        """
        found = _RUN_ID.search(data[:_HEAD_BYTES])
        if found is None:
            return False
        query = (
            sa.select(DOCUMENTS.c.data)
            .join(RUNS, RUNS.c.key == DOCUMENTS.c.run)
            .where(RUNS.c.id == found[1].decode("utf-8", "replace"))
        )
        with self._errors(), self._engine.begin() as connection:
            packed = connection.execute(query).scalar_one_or_none()
        try:
            return packed is not None and zlib.decompress(packed) == data
        except zlib.error:
            return False

    def runs(self) -> list[StoredRun]:
        """Every run, the oldest first."""
        order = sa.select(RUNS).order_by(RUNS.c.started_s, RUNS.c.id)
        versions: dict[str, dict[str, str | None]] = {}
        with self._errors(), self._engine.begin() as connection:
            rows = connection.execute(order).all()
        try:
            return [_run(row, versions) for row in rows]
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self._shown}: {RUNS.name} was altered in the store: {one_line(str(error))}"
            ) from error

    def file(self, run: StoredRun) -> tuple[bytes, str]:
        """The file of a run, byte for byte, and a name for it.

        Raises StoreError where it is not what was imported.
        """
        with self._errors(), self._engine.begin() as connection:
            return self._file(connection, run)

    def names(self) -> list[MeasureId]:
        """Everything that was measured, in the order of the ids."""
        with self._errors(), self._engine.begin() as connection:
            rows = connection.execute(sa.select(NAMES).order_by(NAMES.c.id, NAMES.c.device))
            return [_name(row) for row in rows]

    def series(self, runs: Sequence[StoredRun], measure: str | None = None) -> list[Series]:
        """The values of ``runs`` by what was measured; of the measure with that id alone, if given.

        They are in the order of what they measure. Values and spreads beyond ``MAX_VALUE`` are left
        out. So is how many results screens judged, which is as many as their time allows.
        """
        query = sa.select(PACKED.c.run, PACKED.c.data)
        if len(runs) <= _FEW:
            query = query.where(PACKED.c.run.in_([run.key for run in runs]))
        with self._errors(), self._engine.begin() as connection:
            rows = connection.execute(query).all()
            # afterwards: another writer may have added some meanwhile
            names = {row.key: _name(row) for row in connection.execute(sa.select(NAMES))}
        places = {run.key: place for place, run in enumerate(runs)}
        chosen = [(places[key], data) for key, data in rows if key in places]
        wanted = {
            key
            for key, what in names.items()
            if measure == what.id or (measure is None and what.unit != JUDGED)
        }
        try:
            found = [
                Series(names[key], at, numbers["value"], numbers["spread"])
                for key, at, numbers in _by_name(chosen)
                if key in wanted
            ]
        except ValueError as error:
            raise StoreError(
                f"{self._shown}: {PACKED.name} was altered in the store: {error}"
            ) from error
        return sorted(found, key=lambda each: str(each.what))

    def judged(self, runs: Sequence[StoredRun]) -> list[Judged]:
        """How many results the screens of ``runs`` judged, of each probe on each device."""
        query = (
            sa.select(MEASURES.c.run, MEASURES.c.value, MEASURES.c.verdict, NAMES)
            .join(NAMES, NAMES.c.key == MEASURES.c.name)
            .where(NAMES.c.unit == JUDGED)
        )
        with self._errors(), self._engine.begin() as connection:
            rows = connection.execute(query).all()
        known = {run.key: run for run in runs}
        return [
            Judged(known[row.run], _name(row), row.value, row.verdict)
            for row in rows
            if row.run in known
        ]

    def _file(self, connection: sa.Connection, run: Any) -> tuple[bytes, str]:
        """The file of a row of RUNS, or of a StoredRun, and its name."""
        # questions need no documents, and what checks them is slow to import

        query = sa.select(DOCUMENTS.c.data).where(DOCUMENTS.c.run == run.key)
        packed = connection.execute(query).scalar_one_or_none()
        try:
            data = zlib.decompress(packed or b"")
            return data, file_name_of(data, run.digest)
        except (ValueError, LookupError, TypeError, zlib.error) as error:
            raise StoreError(
                f"{self._shown}: the document of run {one_line(run.id)} was altered in the store: "
                f"{one_line(str(error))}"
            ) from error

    def _keys(self, connection: sa.Connection, wanted: Sequence[MeasureId]) -> dict[MeasureId, int]:
        """The key of each name, those of new ones made; only within the lock of a writer."""
        known = self._names
        if not known.keys() >= set(wanted):
            known = _read_names(connection)
        if new := [each for each in wanted if each not in known]:
            rows = [
                {**each.to_json(), "device": each.device or "", "statistic": each.statistic or ""}
                for each in new
            ]
            connection.execute(sa.insert(NAMES), rows)
            known = _read_names(connection)
        return known

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        with store_errors(self._shown):
            yield


def open_store(place: str, *, create: bool = False) -> Store:
    """The store in a file (SQLite), or at a URL ``postgresql+psycopg://...``; a context manager.

    ``create`` makes one where there is none. A store of an older version is migrated. Raises
    StoreNotFound where there is none, or where ``place`` is something else; StoreError for one of a
    newer version, and where it cannot be reached; MissingDependency for what is not installed.
    """
    return Store(open_database(place, create=create))


def _check_same(document: Document, data: bytes, name: str) -> None:
    """Raise OtherRun unless one of two documents with one id is the bundle of the other."""
    from portagpu.reports.bundles.document import parse

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


def _read_names(connection: sa.Connection) -> dict[MeasureId, int]:
    return {_name(row): row.key for row in connection.execute(sa.select(NAMES))}


def _name(row: Any) -> MeasureId:
    return MeasureId(row.suite, row.id, row.device or None, row.unit, row.statistic or None)


def _run(row: Any, known: dict[str, dict[str, str | None]]) -> StoredRun:
    """The run of a row. ``known`` are versions by their JSON, of which many runs have the same."""
    if row.versions not in known:
        known[row.versions] = json.loads(row.versions)
    versions = known[row.versions]
    if not (isinstance(versions, dict) and 0 <= row.started_s < _YEAR_10000_S):
        raise ValueError(f"run {row.id} has no time or no versions")
    return StoredRun(
        key=row.key,
        id=row.id,
        started_s=row.started_s,
        machine=Machine(row.target, row.host),
        backend=row.backend,
        versions=versions,
        verdict=row.verdict,
        digest=row.digest,
        measures=row.measures,
    )


def _pack(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows of MEASURES as one value of PACKED."""
    gap = float("nan")
    numbers = [
        (row["name"], row["value"], gap if row["spread"] is None else row["spread"]) for row in rows
    ]
    return bytes(np.array(numbers, dtype=NUMBERS).tobytes())


def _by_name(packed: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, Any, Any]]:
    """The key of each name with the places of runs and their NUMBERS, from places and PACKED."""
    numbers: Any = np.frombuffer(b"".join(data for _, data in packed), dtype=NUMBERS)
    counts = [len(data) // NUMBERS.itemsize for _, data in packed]
    at: Any = np.repeat(np.array([place for place, _ in packed], dtype=np.int64), counts)
    order = np.argsort(numbers["name"], kind="stable")
    numbers, at = numbers[order], at[order]
    # fmax passes over NaN, which stands for no spread
    known = np.fmax(np.abs(numbers["value"]), numbers["spread"]) <= MAX_VALUE
    numbers, at = numbers[known], at[known]
    cuts: Any = np.flatnonzero(np.diff(numbers["name"])) + 1
    if len(numbers):
        for places, part in zip(np.split(at, cuts), np.split(numbers, cuts), strict=True):
            yield int(part["name"][0]), places, part
