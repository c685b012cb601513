"""Writers that are killed, that write at once, and whose disk is full."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numpy")
pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")
from portagpu.reports.history.store import open_store
from tests.process.test_history_store import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child
from tests.process.test_history_writers import (
    WRITERS,
    check_whole,
    documents,
)
from tests.support.history_stores import place as place
from tests.support.history_stores import postgres_server as postgres_server


def test_a_writer_that_is_killed_100_times_loses_and_doubles_nothing(
    place: str, tmp_path: Path, child: Callable[..., Child]
) -> None:
    folder = tmp_path / "documents"
    documents(folder, 400)
    done = json.loads(child(str(WRITERS), "kill", place, str(folder), "100").ok())
    assert done["killed"] >= 80, "the others had finished everything"
    assert done["at_work"] >= 5, "hardly one was killed while it added documents"
    # what a killed writer said it had added is there, and whatever is there is whole
    with open_store(place, create=True) as store:
        there = {f"{each.machine.host}-{each.id}.json" for each in store.runs()}
    assert set(done["reported"]) <= there
    check_whole(place, len(there)) if there else None
    twice = [name for name, times in Counter(done["reported"]).items() if times > 1]
    assert not twice, "they were added, and then were not there"
    outcomes(place, folder)
    check_whole(place, 400)


def test_writers_at_once_add_each_document_once(
    place: str, tmp_path: Path, child: Callable[..., Child]
) -> None:
    """They make the store at once too."""
    folder = tmp_path / "documents"
    documents(folder, 60)
    done = json.loads(child(str(WRITERS), "together", place, str(folder), "3").ok())
    assert done["codes"] == [0, 0, 0], done["reported"]
    counts = Counter(line.rpartition(" node-1")[0] for line in done["reported"])
    assert counts == {"added": 60, "there already": 120}
    check_whole(place, 60)
