"""Writers that are killed, that write at once, and whose disk is full."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from portagpu.reports.history.store import open_store
from tests.process.test_history_store import outcomes, rows
from tests.support.history_samples import measure, run, write
from tests.support.history_stores import place, postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child

__all__ = ["place", "postgres_server"]

MEASURES = 5


def documents(folder: Path, count: int) -> None:
    folder.mkdir()
    write(
        folder,
        [
            # a name that only this run has, and four that all have
            run(day, [measure(f"a/{n or -day}", float(day)) for n in range(MEASURES)])
            for day in range(count)
        ],
    )


def check_whole(place: str, count: int) -> None:
    """Every document is there once, with every measure, and nothing else is."""
    assert rows(place, "SELECT count(*), count(DISTINCT id) FROM portagpu_runs") == [(count, count)]
    (joined,) = rows(
        place,
        "SELECT count(*) FROM portagpu_measures m JOIN portagpu_names n ON n.key = m.name "
        "JOIN portagpu_runs r ON r.key = m.run JOIN portagpu_documents d ON d.run = r.key "
        "JOIN portagpu_packed p ON p.run = r.key",
    )
    assert joined == (count * MEASURES,)
    assert rows(place, "SELECT count(*) FROM portagpu_measures") == [joined]
    assert rows(place, "SELECT count(*) FROM portagpu_documents") == [(count,)]
    assert rows(place, "SELECT count(*) FROM portagpu_packed") == [(count,)]
    assert rows(place, "SELECT count(*) FROM portagpu_names") == [(count + MEASURES - 1,)]
    if "://" not in place:
        assert rows(place, "PRAGMA integrity_check") == [("ok",)]


def import_within(child: Callable[..., Child], limit: int, place: Path, folder: Path) -> Child:
    """Import as the command does, with files of at most ``limit`` bytes."""
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
from portagpu.cli import main
sys.exit(main(["matrix", "history", "import", "--store", {str(place)!r}, {str(folder)!r}]))
"""
    done: Child = child("-c", code)
    return done


def test_a_disk_without_space_for_the_tables_has_no_store(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
    folder, place = tmp_path / "documents", tmp_path / "store.db"
    documents(folder, 1)
    done = import_within(child, 6000, place, folder)
    assert (done.code, len(done.err.splitlines())) == (1, 1), done.err
    assert outcomes(str(place), folder) == ["added"]
    check_whole(str(place), 1)


def test_a_writer_waits_for_another_and_says_so_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portagpu.base.errors import StoreError

    place = str(tmp_path / "store.db")
    documents(tmp_path / "documents", 1)
    with open_store(place, create=True):
        pass
    monkeypatch.setattr("portagpu.reports.history.database._WAIT_S", 0)
    other: Any = sqlite3.connect(place, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked; another program writes: try again later"):
        outcomes(place, tmp_path / "documents")
    other.execute("ROLLBACK")
    other.close()
    assert outcomes(place, tmp_path / "documents") == ["added"]
