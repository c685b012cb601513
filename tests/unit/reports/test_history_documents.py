"""Files that no store may hold: one line says why, and where."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from portagpu.base.errors import MissingDependency, ResultError
from portagpu.reports.bundles.document import started

pytest.importorskip("numpy")  # what the store needs, too

from portagpu.reports.history.documents import measures_of, read_document
from tests.support.history_samples import FIRST_DAY, measure, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = FIRST_DAY + timedelta(days=1)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file of a run with that change."""
    made = run(0, [measure("a/b", 1.5), measure("a/c", 2.5, "us")])
    document = made.to_json()
    change(document)
    path.write_text(json.dumps(document))
    return path


def into(place: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Set the key at "run.started" or "results.0.value"."""

    def change(document: dict[str, Any]) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
        inner: Any = document
        for part in path:
            inner = inner[part]
        inner[last] = value

    return change


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("results.0.unit", None, "results[0].unit: is missing; a value has a unit"),
        ("results.1.value", float("nan"), "results[1].value: must be a finite number"),
        ("results.1.value", float("inf"), "results[1].value: must be a finite number"),
        ("results.0.spread", float("-inf"), "results[0].spread: must be a finite number"),
        ("results.0.extra", {"mean": float("nan")}, "results[0].extra.mean: must be finite"),
        ("verdict", "PASS", "verdict: is 'PASS', but the results give 'INCONCLUSIVE'"),
        ("schema", "portagpu.result/9", "schema: is portagpu.result/9; this version reads"),
        ("run.started", "2025-01-03T08:00:00Z", "in the future: the clock of that machine"),
        ("run.started", "1970-01-01T00:01:00Z", "the clock of that machine was not set"),
        ("run.started", "2024-12-31T20:00:00Z", "but the id was made at 2025-01-01T08:00:00Z"),
        ("run.duration_s", 5.0, "run.duration_s: is 5, but a/b took 30 s: the clock jumped"),
        ("run.started", "2025-01-01T08:00:00", "run.started: must be a time as RFC 3339"),
        ("run.host", "a\0b", "run.host: holds a null character"),
        ("run.id", "x" * 2001, "run.id: is longer than 2000 bytes"),
        ("run.target", "\u20ac" * 700, "run.target: is longer than 2000 bytes"),
        ("results.1.id", "a/" + "x" * 2000, "its names are longer than 2000 bytes"),
        ("results.1.n", 2**70, "a/c: n is more than 2147483647"),
    ],
)
def test_a_wrong_document_is_refused(tmp_path: Path, place: str, value: object, said: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["results"][0]["duration_s"] = 30.0
        into(place, value)(document)

    path = changed(tmp_path / "x.json", change)
    with pytest.raises(ResultError) as caught:
        read_document(path, NOW)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clocks_of_two_machines_may_differ_a_little(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.json", lambda document: None)
    for ahead in (timedelta(minutes=4), timedelta(days=-700)):
        assert read_document(path, FIRST_DAY - ahead).run.info.host == "node-1"
    with pytest.raises(ResultError, match="in the future"):
        read_document(path, FIRST_DAY - timedelta(minutes=6))


def test_a_time_in_another_zone_is_the_same_moment(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.json", into("run.started", "2025-01-01T13:30:00+05:30"))
    assert started(read_document(path, NOW).run) == datetime(2025, 1, 1, 8, tzinfo=UTC)


def test_an_id_of_any_form_is_taken(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.json", into("run.id", "../../night run"))
    assert read_document(path, NOW).run.info.id == "../../night run"


def test_measures_are_results_with_a_number() -> None:
    one = measure("a/b", 1.5, device="cuda:0")
    made = run(0, [one, replace(one, device="cuda:1", value="off", unit=None, spread=None)])
    assert [each.device for each in measures_of(made)] == ["cuda:0"]
    made.info = replace(made.info, replay=({"name": "x", "sha256": None, "source": None},))
    assert measures_of(made) == {}


def test_a_store_in_postgresql_without_its_driver_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = pytest.importorskip("portagpu.reports.history.database")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"PostgreSQL needs psycopg: .*\[postgres\]"):
        database.open_database("postgresql+psycopg://me@h/x", create=False)
