"""A store in SQLite and in PostgreSQL: nothing is lost, doubled or half-written."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import zlib
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy")
sa: Any = pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from portagpu.base.errors import StoreError, StoreNotFound
from portagpu.reports.bundles.content import canonical
from portagpu.reports.history.database import METADATA, VERSION_TABLE, VERSIONS
from portagpu.reports.history.documents import read_document
from portagpu.reports.history.files import Outcome, export_files, import_files
from portagpu.reports.history.store import open_store
from portagpu.runs.results.run import Result, Verdict, read_json
from tests.support import bundle_samples
from tests.support.history_samples import measure, run, write
from tests.support.history_stores import place, postgres_server
from tests.support.result_samples import failing, passing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from portagpu.reports.history.files import Imported
    from portagpu.reports.history.store import Store

__all__ = ["place", "postgres_server"]


def imported(place: str, *paths: Path) -> list[Imported]:
    with open_store(place, create=True) as store:
        return list(import_files(store, paths))


def outcomes(place: str, *paths: Path) -> list[str]:
    # the store may lie in the same folder
    found = [each for each in imported(place, *paths) if each.path.suffix == ".json"]
    return [each.outcome for each in found]


def rows(place: str, query: str) -> list[tuple[Any, ...]]:
    """What the database itself answers, not the store."""
    url = place if "://" in place else sa.URL.create("sqlite", database=place)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        answer = connection.exec_driver_sql(query)
        found = [tuple(row) for row in answer] if answer.returns_rows else []
    engine.dispose()
    return found


def two_days() -> list[Any]:
    return [
        run(day, [measure("memory/copy", 100.0 + day), measure("launch/issue", 3.5, "us")])
        for day in range(2)
    ]


def test_what_is_exported_is_what_was_imported_byte_for_byte(place: str, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    bundle = bundle_samples.bundle()
    data = bundle_samples.data(bundle)
    (inside / "bundle.json").write_bytes(data)
    for number, each in enumerate((passing(), failing())):
        info = {**each.info.to_json(), "id": f"run-{number}"}
        each.info = type(each.info)(**info)
        each.write_json(inside / f"{number}.json")
    # the same document in another form is the same run, and is kept in the form that came first
    compact = inside / "z.json"
    compact.write_text(json.dumps(json.loads((inside / "0.json").read_text())))
    assert outcomes(place, inside) == [Outcome.ADDED] * 3 + [Outcome.THERE]
    with open_store(place) as store:
        files = list(export_files(store, store.runs(), outside))
    sources = [inside / name for name in ("0.json", "1.json", "bundle.json")]
    assert {file.read_bytes() for file in files} == {file.read_bytes() for file in sources}
    assert {canonical(json.loads(file.read_bytes())) for file in files} == {
        canonical(json.loads(file.read_bytes())) for file in sources
    }
    assert read_json(inside / "0.json") in [
        read_json(file) for file in files if file.read_bytes() != data
    ]
    # and what was exported is imported as what it is
    assert set(outcomes(place, outside)) == {Outcome.THERE}
    with open_store(place) as store:
        again = list(export_files(store, store.runs(), outside))
    assert sorted(again) == sorted(files)


def test_the_same_document_twice_is_one(place: str, tmp_path: Path) -> None:
    write(tmp_path, two_days())
    assert outcomes(place, tmp_path) == [Outcome.ADDED] * 2
    assert outcomes(place, tmp_path, tmp_path) == [Outcome.THERE] * 4
    assert rows(place, "SELECT count(*) FROM portagpu_runs") == [(2,)]
    assert rows(place, "SELECT count(*) FROM portagpu_documents") == [(2,)]
    assert rows(place, "SELECT count(*) FROM portagpu_packed") == [(2,)]
    assert rows(place, "SELECT count(*) FROM portagpu_measures") == [(4,)]
    assert rows(place, "SELECT count(*) FROM portagpu_names") == [(2,)]


def test_a_file_that_is_there_is_not_read_again(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, two_days())
    assert outcomes(place, tmp_path) == [Outcome.ADDED] * 2

    def read(path: Path) -> None:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr("portagpu.reports.history.files.read_document", read)
    assert outcomes(place, tmp_path) == [Outcome.THERE] * 2


def test_the_tables_have_what_the_results_have(place: str, tmp_path: Path) -> None:
    results = [
        measure("a/b", 1.0 / 3, "us", device="cuda:1", spread=0.125, n=7),
        Result(id="a/b", suite="conformance", area="a", verdict=Verdict.PASS, value=2, unit="1"),
        Result(id="a/c", suite="conformance", area="a", verdict=Verdict.PASS, value="off"),
        Result(id="a/d", suite="conformance", area="a", verdict=Verdict.SKIP, reason="why"),
    ]
    write(tmp_path, [run(0, results, target=None)])
    assert outcomes(place, tmp_path) == [Outcome.ADDED]
    found = rows(
        place,
        "SELECT n.suite, n.id, n.device, n.unit, n.statistic, m.value, m.spread, m.n, m.verdict "
        "FROM portagpu_measures m JOIN portagpu_names n ON n.key = m.name ORDER BY n.suite",
    )
    assert found == [
        ("conformance", "a/b", "", "1", "", 2.0, None, None, "PASS"),
        ("performance", "a/b", "cuda:1", "us", "median", 1.0 / 3, 0.125, 7, "UNVERIFIED"),
    ]
    with open_store(place) as store:
        (one,) = store.runs()
        series = store.series([one])
        names = store.names()
    assert (one.machine.target, one.machine.host, one.verdict) == (None, "node-1", "PASS")
    assert one.started == "2025-01-01T08:00:00Z"
    assert one.versions == {"portagpu": "0.1.0", "torch": "2.12.0", "driver": None}
    assert [each.what.device for each in series] == [None, "cuda:1"]
    assert {each.what for each in series} == set(names)
    assert [each.values.tolist() for each in series] == [[2.0], [1.0 / 3]]
    assert [str(each.spreads.tolist()) for each in series] == ["[nan]", "[0.125]"]


def test_the_longest_names_fit_into_the_indexes(place: str, tmp_path: Path) -> None:
    host, long_id = "\u20ac" * 600, "a/" + "".join(chr(0x4E00 + n) for n in range(600))
    made = run(0, [measure(long_id, 1e150, n=2**31 - 1)], host=host)
    made.info = type(made.info)(**{**made.info.to_json(), "id": long_id})
    made.write_json(tmp_path / "x.json")
    assert outcomes(place, tmp_path) == [Outcome.ADDED]
    with open_store(place) as store:
        (one,) = store.runs()
        (series,) = store.series([one])
    assert (one.id, one.machine.host, series.what.id) == (long_id, host, long_id)
    assert series.values.tolist() == [1e150]


def test_two_documents_under_one_id_are_refused(place: str, tmp_path: Path) -> None:
    (first,) = write(tmp_path, [run(0, [measure("a/b", 1.0)])])
    edited = tmp_path / "edited.json"
    edited.write_text(first.read_text().replace('"value": 1.0', '"value": 2.0'))
    moved = tmp_path / "moved.json"
    moved.write_text(first.read_text().replace('"host": "node-1"', '"host": "node-2"'))
    added, other, machine = imported(place, first, edited, moved)
    assert added.outcome is Outcome.ADDED
    assert other.outcome is machine.outcome is Outcome.REFUSED
    assert "is in the store as another document, of 2025-01-01T08:00:00Z" in other.why
    assert "is of host 'node-2', and the store has it of host 'node-1': two machines" in machine.why
    assert rows(place, "SELECT value FROM portagpu_measures") == [(1.0,)]


def test_a_run_and_its_bundle_are_one(place: str, tmp_path: Path) -> None:
    full = bundle_samples.full_run()
    full.write_json(tmp_path / "run.json")
    (tmp_path / "x.json").write_bytes(bundle_samples.data(bundle_samples.bundle(full)))
    assert outcomes(place, tmp_path) == [Outcome.ADDED, Outcome.THERE]
    shutil.copy(tmp_path / "run.json", tmp_path / "result.json")
    assert outcomes(place, tmp_path) == [Outcome.THERE] * 2, "the bundle is of the result's run"
    assert rows(place, "SELECT host FROM portagpu_runs") == [("node-07",)]
    changed = json.loads((tmp_path / "run.json").read_text())
    changed["results"][-1]["value"] = 17.0
    (tmp_path / "run.json").write_text(json.dumps(changed))
    (why,) = (each.why for each in imported(place, tmp_path / "run.json"))
    assert "another document" in why


def test_a_transaction_that_fails_leaves_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write(tmp_path, two_days())
    documents = [read_document(file) for file in files]
    real = sa.Connection.execute
    count = 0

    def execute(self: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        if "INSERT INTO portagpu_measures" in str(statement):
            raise sa.exc.OperationalError("statement", {}, Exception("database or disk is full"))
        count += 1
        return real(self, statement, *arguments, **options)

    with open_store(place, create=True) as store:
        with monkeypatch.context() as patched:
            patched.setattr(sa.Connection, "execute", execute)
            with pytest.raises(StoreError, match="disk is full; free space, or name another place"):
                store.add(documents[0])
        assert count
        assert store.runs() == []
        assert store.names() == []
        # names of the transaction that failed are not remembered
        assert store.add(documents[0])
        assert store.add(documents[1])
        assert [len(each.values) for each in store.series(store.runs())] == [2, 2]


def test_the_migrations_make_the_tables_that_the_code_reads(place: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    open_store(place, create=True).__exit__(None, None, None)
    url = place if "://" in place else sa.URL.create("sqlite", database=place)
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []
        assert context.get_current_revision() == VERSIONS[-1]
    engine.dispose()


def test_a_store_of_an_older_version_is_migrated(place: str, tmp_path: Path) -> None:
    write(tmp_path, two_days())
    outcomes(place, tmp_path)
    # as the first version left it
    rows(place, "DROP INDEX portagpu_measures_run")
    rows(place, "DROP TABLE portagpu_condensed")
    rows(place, "DROP TABLE portagpu_forms")
    rows(place, "UPDATE portagpu_version SET version_num = '0001'")
    with open_store(place) as store:
        assert len(store.runs()) == 2
        assert store.series(store.runs())[0].values.tolist() == [3.5, 3.5]
    assert rows(place, "SELECT version_num FROM portagpu_version") == [(VERSIONS[-1],)]
    rows(place, "DROP INDEX portagpu_measures_run")  # which is there again


def test_a_store_of_a_newer_version_is_refused(place: str) -> None:
    open_store(place, create=True).__exit__(None, None, None)
    rows(place, "UPDATE portagpu_version SET version_num = '0099'")
    for create in (False, True):
        with pytest.raises(StoreError, match=r"newer portagpu \(tables 0099, .*: upgrade portagpu"):
            open_store(place, create=create)
    assert rows(place, "SELECT version_num FROM portagpu_version") == [("0099",)]


def test_others_than_its_owner_are_asked_to_have_a_store_migrated(
    postgres_server: Callable[[], str], tmp_path: Path
) -> None:
    place = postgres_server()
    write(tmp_path, two_days())
    outcomes(place, tmp_path)
    role = f"reader_{place.partition('/test')[2].partition('?')[0]}"
    rows(place, f"CREATE ROLE {role} LOGIN")
    rows(place, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    theirs = place.replace("//portagpu@", f"//{role}@")
    with open_store(theirs) as store:
        assert len(store.runs()) == 2
    (another,) = write(tmp_path, [run(2, [])])
    with pytest.raises(StoreError, match="have the owner of the database grant it"):
        outcomes(theirs, another)
    rows(place, "DROP INDEX portagpu_measures_run")
    rows(place, "DROP TABLE portagpu_condensed")
    rows(place, "DROP TABLE portagpu_forms")
    rows(place, "UPDATE portagpu_version SET version_num = '0001'")
    with pytest.raises(StoreError, match="older version: have its owner run a verb on it once"):
        open_store(theirs)
    assert rows(place, "SELECT version_num FROM portagpu_version") == [("0001",)]


def test_a_database_that_is_not_a_store_is_one_line(postgres_server: Callable[[], str]) -> None:
    place = postgres_server()
    with pytest.raises(
        StoreNotFound, match="has no store in it; portagpu matrix history import makes one"
    ):
        open_store(place)
    rows(place, "CREATE TABLE portagpu_runs (x integer)")
    for create in (False, True):
        with pytest.raises(StoreError, match="without their version; the store is damaged"):
            open_store(place, create=create)
    with pytest.raises(StoreError, match="and its address, database, user and password"):
        open_store(place.replace("/test", "/no_such_test"))


def test_an_altered_document_is_not_exported(place: str, tmp_path: Path) -> None:
    write(tmp_path, two_days()[:1])
    outcomes(place, tmp_path)
    ((data,),) = rows(place, "SELECT data FROM portagpu_documents")
    text = zlib.decompress(bytes(data)).replace(b'"value": 100.0', b'"value": 900.0')
    for packed in (zlib.compress(text), bytes(data)[:-9], b"x"):
        literal = f"'\\x{packed.hex()}'" if "://" in place else f"x'{packed.hex()}'"
        rows(place, f"UPDATE portagpu_documents SET data = {literal}")  # noqa: S608
        with (
            open_store(place) as store,
            pytest.raises(StoreError, match="was altered in the store"),
        ):
            list(export_files(store, store.runs(), tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    wrong = r"'\x01'" if "://" in place else "x'01'"
    rows(place, f"UPDATE portagpu_packed SET data = {wrong}")  # noqa: S608
    with open_store(place) as store, pytest.raises(StoreError, match="portagpu_packed was altered"):
        store.series(store.runs())


def test_few_and_many_runs_are_found_in_the_same_way(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [run(day, [measure("a/b", float(day))] if day % 2 else []) for day in range(6)]
    write(tmp_path, days)
    outcomes(place, tmp_path)

    def asked(store: Store) -> list[list[tuple[int, float]]]:
        chosen = store.runs()[1:5]
        found = store.series(chosen)
        return [sorted(zip(s.runs.tolist(), s.values.tolist(), strict=True)) for s in found]

    with open_store(place) as store:
        assert asked(store) == [[(0, 1.0), (2, 3.0)]]
        monkeypatch.setattr("portagpu.reports.history.store._FEW", 0)
        assert asked(store) == [[(0, 1.0), (2, 3.0)]]
        assert store.series([]) == []
        assert store.series(store.runs(), "a/c") == []


# what only a file can be


def test_places_that_are_not_stores(tmp_path: Path) -> None:
    with pytest.raises(
        StoreNotFound, match="the store does not exist; portagpu matrix history import makes one"
    ):
        open_store(str(tmp_path / "missing.db"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreNotFound, match="is a folder"):
        open_store(str(tmp_path), create=True)
    with pytest.raises(StoreError, match="folder that exists"):
        open_store(str(tmp_path / "no" / "store.db"), create=True)
    text = tmp_path / "text.db"
    text.write_text("no database at all, but long enough to look at\n" * 99)
    before = text.read_bytes()
    with pytest.raises(StoreNotFound, match="not a database; name a store that import has made"):
        open_store(str(text), create=True)
    assert text.read_bytes() == before
    other = tmp_path / "capture.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE kernels (name text)")
    connection.close()
    with pytest.raises(StoreNotFound, match="is a database of another program; name another"):
        open_store(str(other), create=True)
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(StoreNotFound, match="is not a regular file; name another place"):
            open_store(str(special), create=True)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("mysql://h/x", "unsupported URL of mysql"),
        ("postgresql://h/x", r"unsupported URL of postgresql; .*write postgresql\+psycopg://"),
        ("sqlite:///x.db", "unsupported URL of sqlite; name a file"),
        ("://", "not the address of a database"),
        ("postgresql+psycopg://h:secret:9x/x", "not the address of a database"),
    ],
)
def test_addresses_that_are_not_stores(place: str, said: str) -> None:
    with pytest.raises(StoreNotFound, match=said) as caught:
        open_store(place)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    [
        "postgresql+psycopg://me:secret@127.0.0.1:1/x",
        "postgresql+psycopg://me@127.0.0.1:1/x?password=secret",
    ],
)
def test_an_unreachable_server_is_one_line_without_the_password(place: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as caught:
        open_store(place)
    assert "check that the server runs" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    place = str(tmp_path / "store.db")
    write(tmp_path, [run(day, [measure(f"a/{n}", 1.0) for n in range(40)]) for day in range(40)])
    outcomes(place, tmp_path)
    data = (tmp_path / "store.db").read_bytes()
    (tmp_path / "store.db").write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError, match="malformed; the file is damaged"), open_store(place) as s:
        s.series(s.runs())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE portagpu_runs SET versions = '{'", "portagpu_runs was altered in the store"),
        ("UPDATE portagpu_runs SET versions = '[]'", "has no time or no versions"),
        ("UPDATE portagpu_runs SET started_s = 'x'", "portagpu_runs was altered in the store"),
        ("UPDATE portagpu_runs SET started_s = 1e300", "has no time or no versions"),
        ("DROP TABLE portagpu_packed", "the store is damaged: import the documents into a new"),
        ("DELETE FROM portagpu_version", "the store is damaged: import the documents into a new"),
    ],
)
def test_an_altered_store_is_one_line(tmp_path: Path, change: str, said: str) -> None:
    place = str(tmp_path / "store.db")
    write(tmp_path, two_days())
    outcomes(place, tmp_path)
    rows(place, change)
    with pytest.raises(StoreError, match=said) as caught, open_store(place) as store:
        store.series(store.runs())
    assert "\n" not in str(caught.value)


def test_a_file_that_nobody_may_write_can_be_read(tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    write(tmp_path, two_days())
    outcomes(str(place), tmp_path)
    place.chmod(0o400)
    with open_store(str(place)) as store:
        assert len(store.runs()) == 2
