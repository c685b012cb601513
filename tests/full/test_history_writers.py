"""Writers that are killed, that write at once, and whose disk is full."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numpy")
pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")
import os
import signal
import sqlite3
import subprocess
import sys

from portagpu.reports.history.store import open_store
from tests.conftest import ROOT
from tests.process.test_history_store import outcomes
from tests.process.test_history_writers import check_whole, documents, import_within
from tests.support.history_stores import place as place
from tests.support.history_stores import postgres_server as postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child


WRITERS = ROOT / "tests/support/history_writers.py"


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


def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
    folder, place = tmp_path / "documents", tmp_path / "store.db"
    documents(folder, 60)
    whole = tmp_path / "whole.db"
    outcomes(str(whole), folder)
    # the first 32 documents, which are one transaction, and not all
    done = import_within(child, whole.stat().st_size * 3 // 4, place, folder)
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith(f"portagpu: {place}: ")
    assert "free space" in line
    with open_store(str(place)) as store:
        kept = len(store.runs())
    assert 0 < kept < 60
    check_whole(str(place), kept)
    # and with space it goes on where it was
    outcomes(str(place), folder)
    check_whole(str(place), 60)


@pytest.mark.parametrize("words", [["runs"], ["import", "runs"]])
def test_ctrl_c_ends_the_wait_for_another_writer(tmp_path: Path, words: list[str]) -> None:
    documents(tmp_path / "runs", 1)
    place = str(tmp_path / "store.db")
    outcomes(place, tmp_path / "runs")
    holder = sqlite3.connect(place, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    code = f"""
import sys
from portagpu.reports.history import database
free = database._when_free
def waits(*words):
    print("waits", flush=True)
    free(*words)
database._when_free = waits
from portagpu.cli import main
sys.exit(main(["matrix", "history", *{words!r}, "--store", {place!r}]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    # SQLite itself would wait for a minute, and the holder never ends
    _, said = process.communicate(timeout=60)
    holder.close()
    assert (process.returncode, said.strip()) == (130, "portagpu: interrupted")
    check_whole(place, 1)
