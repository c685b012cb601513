"""A store of runs in SQLite (a file) or PostgreSQL, through the same code.

Documents are added whole, several in a transaction. Writers wait for each other, and readers of
SQLite for a commit.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from portagpu.base.errors import StoreError
from portagpu.base.text import one_line
from portagpu.reports.bundles.document import Document, parse, started
from portagpu.reports.condensed.nodes import NodeRun, node_of
from portagpu.reports.condensed.packed import Packed, Unpacker
from portagpu.reports.history.condensed import condensed_row, form_key, read_condensed
from portagpu.reports.history.database import (
    CONDENSED,
    DOCUMENTS,
    FORMS,
    MEASURES,
    NAMES,
    PACKED,
    RUNS,
    lock,
    open_database,
    store_errors,
)
from portagpu.reports.history.documents import OtherRun, check_same, file_name_of, measures_of
from portagpu.reports.history.model import JUDGED, Judged, Machine, MeasureId, Series, StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from portagpu.reports.history.database import Database


_RUN_ID: Final = re.compile(rb'"run":\s*\{\s*"id":\s*"([^"\\]{1,200})"')
_HEAD_BYTES: Final = 64 << 10
"""Of a file, in which a writer of results puts the run's id."""


_LEVEL: Final = 3
"""Of zlib: more of it takes three times as long for a file that is a tenth smaller."""
_YEAR_10000_S: Final = 253_402_300_800
_FEW: Final = 1000
"""Up to this many runs are read one by one; for more, reading all of them is faster."""
MAX_VALUE: Final = 1e150
"""Of a value that is compared: no hardware comes near, and its square is still a number."""
NUMBERS: Final = np.dtype([("name", "<i4"), ("value", "<f8"), ("spread", "<f8")])
"""A measure in PACKED: the key of its name, value and spread in its unit; NaN for none."""


class _Rows(NamedTuple):
    """What a document adds to the tables, without the key of its run."""

    run: dict[str, Any]
    document: bytes
    measures: dict[MeasureId, dict[str, Any]]
    condensed: dict[str, Any] | None
    whole: Document

    @classmethod
    def of(cls, document: Document) -> _Rows:
        info = document.run.info
        measures = {
            what: {
                "value": float(result.value),  # type: ignore[arg-type]
                "spread": result.spread,
                "n": result.n,
                "verdict": str(result.verdict),
            }
            for what, result in measures_of(document.run).items()
        }
        run = {
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
        packed = zlib.compress(document.data, _LEVEL)
        return cls(run, packed, measures, condensed_row(document), document)


def _as_other(rows: _Rows, other: _Rows) -> bool | OtherRun:
    """What becomes of a document whose run another of the same transaction has."""
    if rows.run["digest"] != other.run["digest"]:
        try:
            check_same(rows.whole, other.whole.data, other.whole.path.name)
        except OtherRun as error:
            return error
    return False


class Store:
    """An open store; a context manager. Made by :func:`open_store`.

    Every method raises StoreError where the database cannot be read or written.
    """

    def __init__(self, database: Database) -> None:
        self._engine = database.reader
        self._writer = database.writer
        self._shown = database.shown
        self._names: dict[MeasureId, int] = {}
        self._forms: dict[str, int] = {}

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
        (added,) = self.add_all([document])
        if isinstance(added, OtherRun):
            raise added
        return added

    def add_all(self, documents: Sequence[Document]) -> list[bool | OtherRun]:
        """Store documents in one transaction: what :meth:`add` returns or raises for each."""
        rows = [_Rows.of(each) for each in documents]
        with self._errors(), self._writer.begin() as connection:
            lock(connection)
            found = [self._is_new(connection, each) for each in documents]
            new: dict[str, _Rows] = {}
            for place, (each, is_new) in enumerate(zip(rows, found, strict=True)):
                if is_new is True and (other := new.setdefault(each.run["id"], each)) is not each:
                    found[place] = _as_other(each, other)
            names, forms = self._insert(connection, list(new.values()))
        # what a transaction that failed has made does not exist
        self._names, self._forms = names, forms
        return found

    def _is_new(self, connection: sa.Connection, document: Document) -> bool | OtherRun:
        query = sa.select(RUNS).where(RUNS.c.id == document.run.info.id)
        found = connection.execute(query).one_or_none()
        if found is None:
            return True
        if found.digest != document.digest:
            try:
                check_same(document, *self._file(connection, found))
            except OtherRun as error:
                return error
        return False

    def _insert(
        self, connection: sa.Connection, new: Sequence[_Rows]
    ) -> tuple[dict[MeasureId, int], dict[str, int]]:
        """Add runs that are not there; the names and forms that are then known, with their keys."""
        forms = dict(self._forms)
        if not new:
            return self._names, forms
        made = sa.insert(RUNS).returning(RUNS.c.key, sort_by_parameter_order=True)
        keys = connection.execute(made, [each.run for each in new]).scalars().all()
        names = self._keys(
            connection, list(dict.fromkeys(what for each in new for what in each.measures))
        )
        measures, packed, condensed = [], [], []
        for key, each in zip(keys, new, strict=True):
            own = [{**row, "name": names[what], "run": key} for what, row in each.measures.items()]
            measures += own
            packed.append({"run": key, "data": _pack(own)})
            if each.condensed is not None:
                form = form_key(connection, forms, each.condensed["form"])
                condensed.append({**each.condensed, "run": key, "form": form})
        documents = [
            {"run": key, "data": each.document} for key, each in zip(keys, new, strict=True)
        ]
        for table, rows in (
            (DOCUMENTS, documents),
            (MEASURES, measures),
            (PACKED, packed),
            (CONDENSED, condensed),
        ):
            if rows:
                connection.execute(sa.insert(table), rows)
        return names, forms

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

    def condensed(self) -> list[tuple[int, str, Packed]]:
        """The key, the mark and the condensed form of each run that has one."""
        try:
            with self._errors(), self._engine.begin() as connection:
                return list(read_condensed(connection))
        except LookupError as error:
            raise StoreError(f"{self._shown}: {FORMS.name} was altered in the store") from error

    def node_runs(self, runs: Sequence[StoredRun]) -> Iterator[NodeRun]:
        """What the report of a fleet keeps of these runs, named by their ids in place of files.

        Documents are read only of runs that another version of portagpu imported.
        """
        kept = {run: packed for run, _, packed in self.condensed()}
        unpacker = Unpacker()
        for run in runs:
            path = Path(run.id)
            try:
                packed = kept.get(run.key)
                found = None if packed is None else unpacker.read(packed, path)
            except (ValueError, LookupError, TypeError) as error:
                raise StoreError(
                    f"{self._shown}: {CONDENSED.name} was altered in the store: run "
                    f"{one_line(run.id)}: {one_line(str(error))}"
                ) from error
            if found is None:
                document = parse(self.file(run)[0], path)
                if not isinstance(own := node_of(document), NodeRun):
                    continue
                found = own
            yield found

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
