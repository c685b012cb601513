"""The tables of a store, the same in SQLite and PostgreSQL, and how its database is opened."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    exc,
)

from portagpu.base.errors import MissingDependency, StoreError, StoreNotFound
from portagpu.base.plugins import install
from portagpu.base.text import excerpt, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator


VERSION_TABLE: Final = "portagpu_version"
VERSIONS: Final = ("0001", "0002", "0003")
"""Every version of the tables, the oldest first; the last is the one that this code reads."""

METADATA: Final = MetaData()

RUNS: Final = Table(
    "portagpu_runs",
    METADATA,
    Column("key", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("started_s", Double, nullable=False),
    Column("host", Text, nullable=False),
    Column("target", Text),
    Column("backend", Text),
    Column("versions", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("measures", Integer, nullable=False),
)
"""``versions`` is JSON, ``schema`` that of the document, ``digest`` the SHA-256 of its canonical
form, ``measures`` how many rows of MEASURES the run has."""

DOCUMENTS: Final = Table(
    "portagpu_documents",
    METADATA,
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The file of each run, byte for byte, compressed with zlib."""

NAMES: Final = Table(
    "portagpu_names",
    METADATA,
    Column("key", Integer, primary_key=True),
    Column("suite", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("statistic", Text, nullable=False),
    UniqueConstraint("id", "suite", "device", "unit", "statistic", name="portagpu_names_unique"),
)
"""What was measured. ``device`` and ``statistic`` are "" where a result has none: NULLs would be
unlike each other."""

MEASURES: Final = Table(
    "portagpu_measures",
    METADATA,
    Column("name", Integer, ForeignKey("portagpu_names.key"), primary_key=True),
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("value", Double, nullable=False),
    Column("spread", Double),
    Column("n", Integer),
    Column("verdict", Text, nullable=False),
    Index("portagpu_measures_run", "run"),
    sqlite_with_rowid=False,
)
"""Each result with a number, for SQL of one's own. In SQLite the rows lie in the order of the key,
so that the values of one measure are read together; the index finds those of one run."""

PACKED: Final = Table(
    "portagpu_packed",
    METADATA,
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
"""The rows of MEASURES of each run in one value, in the form of ``store.NUMBERS``. What is computed
over all runs reads these: a million rows are read in half a second, and their 20 MB in no time."""

FORMS: Final = Table(
    "portagpu_forms",
    METADATA,
    Column("key", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("data", LargeBinary, nullable=False),
)
"""What condensed runs have in common (``portagpu.reports.condensed.packed``), and its SHA-256."""

CONDENSED: Final = Table(
    "portagpu_condensed",
    METADATA,
    Column("run", Integer, ForeignKey("portagpu_runs.key"), primary_key=True),
    Column("form", Integer, ForeignKey("portagpu_forms.key"), nullable=False),
    Column("mark", Text, nullable=False),
    Column("own", LargeBinary, nullable=False),
    Column("numbers", LargeBinary, nullable=False),
)
"""What the report of a fleet keeps of each run, so that it reads no document. ``mark`` is that of
the file (``portagpu.reports.condensed.nodes.mark_of``)."""


_POSTGRESQL: Final = "postgresql+psycopg"
_WAIT_S: Final = 60
"""How long one writer waits for another, which needs some milliseconds for a document."""
_PIECE_MS: Final = 200
_CONNECT_S: Final = 10
_LOCK: Final = 0x706F7274
"""PostgreSQL's advisory lock of writers; an arbitrary number that no other program would take."""
_HINTS: Final = (
    ("is full", "free space, or name another place"),
    ("No space left", "free space on the server"),
    ("disk I/O error", "free space, raise ulimit -f, or name another place"),
    ("readonly", "name a file in a folder that you may write"),
    ("unable to open", "name a file in a folder that exists and that you may write"),
    ("is locked", "another program writes: try again later"),
    ("lock timeout", "another program writes: try again later"),
    ("not a database", "name a store that import has made"),
    ("malformed", "the file is damaged: import the documents into a new store"),
    ("no such table", "the store is damaged: import the documents into a new one"),
    ("connection", "check that the server runs, and its address, database, user and password"),
    ("resolve host", "check its address"),
    ("authentication", "check user and password"),
    ("permission denied", "have the owner of the database grant it"),
    ("must be owner", "it is of an older version: have its owner run a verb on it once"),
    ("already exists", "the store is damaged: import the documents into a new one"),
    ("does not exist", "the store is damaged: import the documents into a new one"),
)


@dataclass(frozen=True, slots=True)
class Database:
    """A database with the tables of this version.

    ``writer`` is ``reader`` with transactions that write from their beginning. ``shown`` names it
    in messages, without a password.
    """

    reader: sa.Engine
    writer: sa.Engine
    shown: str


def open_database(place: str, *, create: bool) -> Database:
    """The database of ``portagpu.reports.history.store.open_store``, which says what is raised."""
    url, shown = _url(place)
    if create:
        _alembic()  # before there is a file
    if url.get_backend_name() == "sqlite":
        _check_file(Path(url.database or ""), create)
    try:
        engine = sa.create_engine(url, connect_args=_arguments(url))
    except ImportError as error:
        raise MissingDependency(f"PostgreSQL needs psycopg: {install('postgres')}") from error
    sa.event.listen(engine, "connect", _leave_transactions_to_us)
    sa.event.listen(engine, "begin", _begin)
    database = Database(engine, engine.execution_options(portagpu_writes=True), shown)
    try:
        _bring_up_to_date(database, create)
    except BaseException:
        engine.dispose()
        raise
    return database


def lock(connection: sa.Connection) -> None:
    """Have other writers wait until this transaction ends; SQLite's began by that."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


@contextlib.contextmanager
def store_errors(shown: str) -> Iterator[None]:
    """Raise StoreError, with the place and what to do, for an error of the database."""
    try:
        yield
    except exc.DBAPIError as error:
        message = one_line(str(getattr(error, "orig", None) or error))
        hint = next((hint for words, hint in _HINTS if words in message), "see its documentation")
        kind = StoreNotFound if "not a database" in message else StoreError
        raise kind(f"{one_line(shown)}: {excerpt(message)}; {hint}") from error


def _url(place: str) -> tuple[sa.URL, str]:
    """The address for SQLAlchemy, and how it is shown: without a password."""
    if "://" not in place:
        path = Path(place)
        return sa.URL.create("sqlite", database=str(path.absolute())), str(path)
    try:
        url = sa.make_url(place)
    except (exc.ArgumentError, ValueError):
        raise StoreNotFound(
            f"--store: not the address of a database; write {_POSTGRESQL}://USER@HOST/NAME"
        ) from None
    if url.drivername != _POSTGRESQL:
        raise StoreNotFound(
            f"--store: unsupported URL of {one_line(url.drivername)}; name a file, or write "
            f"{_POSTGRESQL}://USER@HOST/NAME"
        )
    # a query may hold passwords too
    bare = url.difference_update_query(("password", "sslpassword"))
    return url, bare.render_as_string(hide_password=True)


def _arguments(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"timeout": _WAIT_S}
    return {
        "connect_timeout": _CONNECT_S,
        "options": f"-c lock_timeout={_WAIT_S}s",
        "cursor_factory": _binary_cursor(),
    }


def _binary_cursor() -> Any:
    """psycopg's cursor with binary results: bytes come as they are, and not in hexadecimal."""
    import psycopg

    class BinaryCursor(psycopg.Cursor[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.format = psycopg.pq.Format.BINARY

    return BinaryCursor


def _check_file(path: Path, create: bool) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            raise StoreNotFound(f"{path}: is a folder; name a file in it")
        if path.exists() and not path.is_file():
            raise StoreNotFound(f"{path}: is not a regular file; name another place")
    if not create and not path.exists():
        raise StoreNotFound(
            f"{path}: the store does not exist; portagpu matrix history import makes one"
        )


def _leave_transactions_to_us(connection: Any, _record: object) -> None:
    # sqlite3 begins a transaction by itself, and late: two writers would both have read by then
    if hasattr(connection, "isolation_level") and "sqlite3" in type(connection).__module__:
        connection.isolation_level = None


def _begin(connection: sa.Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    if connection.get_execution_options().get("portagpu_writes"):
        _when_free(connection, "BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql("BEGIN")
        _when_free(connection, "SELECT 1 FROM sqlite_master LIMIT 1")


def _when_free(connection: sa.Connection, statement: str) -> None:
    """Execute ``statement`` once no other writer locks the file.

    SQLite's own waiting is deaf to Ctrl-C, so it is done in short pieces.
    """
    until_s = time.monotonic() + _WAIT_S
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_PIECE_MS}").close()
    while True:
        try:
            connection.exec_driver_sql(statement).close()
            break
        except exc.OperationalError as error:
            if "is locked" not in str(error.orig) or time.monotonic() > until_s:
                raise
            time.sleep(0.01)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {1000 * _WAIT_S}").close()


def _bring_up_to_date(database: Database, create: bool) -> None:
    """Make or migrate the tables, all of it or nothing."""
    with store_errors(database.shown):
        with database.reader.begin() as connection:
            if _version(connection, database.shown, create) == VERSIONS[-1]:
                return
        with database.writer.begin() as connection:
            lock(connection)
            # another writer may have been faster
            if _version(connection, database.shown, create) != VERSIONS[-1]:
                _migrate(connection)


def _version(connection: sa.Connection, shown: str, create: bool) -> str | None:
    """The version of the tables, None where there are none and they may be made."""
    tables = sa.inspect(connection).get_table_names()
    if VERSION_TABLE in tables:
        version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - our own name
        if version is not None and version not in VERSIONS:
            raise StoreError(
                f"{one_line(shown)}: was written by a newer portagpu (tables {one_line(version)}, "
                f"and this one knows {VERSIONS[-1]}): upgrade portagpu"
            )
        return None if version is None else str(version)
    if connection.dialect.name == "sqlite" and tables:
        raise StoreNotFound(f"{one_line(shown)}: is a database of another program; name another")
    if set(METADATA.tables) & set(tables):
        raise StoreError(
            f"{one_line(shown)}: has tables of portagpu without their version; the store is "
            "damaged: import the documents into a new one"
        )
    if not create:
        raise StoreNotFound(
            f"{one_line(shown)}: has no store in it; portagpu matrix history import makes one"
        )
    return None


def _migrate(connection: sa.Connection) -> None:
    alembic = _alembic()
    config = alembic.config.Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, VERSIONS[-1])


def _alembic() -> Any:
    try:
        import alembic.command
        import alembic.config
    except ModuleNotFoundError as error:
        raise MissingDependency(f"history needs {error.name}: {install('history')}") from error
    return alembic
