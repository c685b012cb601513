"""``portagpu matrix history``: what each verb prints, writes and exits with."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("alembic")

from typing import TYPE_CHECKING

from tests.process.test_history_cli import say as say
from tests.process.test_history_cli import store as store
from tests.support.history_samples import measure, run, write
from tests.support.history_stores import place as place
from tests.support.history_stores import postgres_server as postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Child
    from tests.process.test_history_cli import Said


ODD = {
    "huge": [1.7e308 if day % 2 else 1e308 for day in range(12)],
    "huge and negative": [1.7e308 * (-1) ** day for day in range(12)],
    "tiny, then large": [5e-324] * 6 + [1e149] * 6,
    "zero, then not": [0.0] * 6 + [4.0] * 6,
    "one that is not zero": [0.0] * 11 + [5.0],
    "negative": [-10.0] * 6 + [-5.0] * 6,
}


def test_a_folder_is_imported_once(tmp_path: Path, place: str, say: Callable[..., Said]) -> None:
    folder = tmp_path / "runs"
    (folder / "below").mkdir(parents=True)
    files = write(folder / "below", [run(day, [measure("a/b", 1.0)]) for day in range(3)])
    (folder / "other.json").write_text("{}")
    (folder / "notes.txt").write_text("no document")
    code, out, err = say("import", str(folder), place=place)
    assert (code, out) == (0, "3 added, 2 passed over\n")
    assert err == (
        f"left out: {folder / 'other.json'}: is neither a result, as --json and --out write it, "
        f"nor a bundle\nleft out: {folder / 'notes.txt'}: is not JSON\n"
    )
    code, out, _ = say("import", str(folder), "--json", "-", place=place)
    assert (code, json.loads(out)) == (
        0,
        {"added": 0, "there": 3, "passed_over": 2, "refused": 0, "reasons": []},
    )
    files[0].write_text(files[0].read_text()[:-40])
    code, out, err = say("import", str(folder), str(folder / "other.json"), place=place)
    assert (code, out) == (1, "2 there already, 2 passed over, 2 refused\n")
    first, second = (line for line in err.splitlines() if line.startswith("portagpu: "))
    assert first.startswith(f"portagpu: {files[0]}: is not JSON, or was cut off")
    other = folder / "other.json"
    assert second.startswith(f"portagpu: {other}: is neither a result")
    code, out, err = say("export", "--out", str(tmp_path / "out"), place=place)
    assert (code, out, err) == (0, f"wrote 3 files into {tmp_path / 'out'}\n", "")
    written = {path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {path.read_bytes() for path in files[1:]} < written


@pytest.mark.parametrize(
    ("missing", "extra", "where"),
    [
        ("sqlalchemy", "history", "store.db"),
        ("numpy", "history", "store.db"),
        ("alembic", "history", "store.db"),
        ("psycopg", "postgres", "postgresql+psycopg://h/x"),
    ],
)
def test_what_is_not_installed_is_named(
    tmp_path: Path, child: Callable[..., Child], missing: str, extra: str, where: str
) -> None:
    place = where if "://" in where else str(tmp_path / where)
    code = f"""
import sys
sys.modules[{missing!r}] = None
from portagpu.cli import main
from portagpu.runs.results.run import Result, Verdict
sys.exit(main(["matrix", "history", "import", "--store", {place!r}, {str(tmp_path)!r}]))
"""
    done = child("-c", code)
    assert done.code == 3
    (line,) = done.err.splitlines()
    assert missing in line
    assert f"[{extra}]" in line
    assert "pip install" in line
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_values_at_the_ends_of_what_numbers_hold(
    tmp_path: Path, say: Callable[..., Said], values: list[float]
) -> None:
    place = str(tmp_path / "store.db")
    (tmp_path / "runs").mkdir()
    for unit in ("GB/s", "1"):
        days = [
            run(day, [measure(f"a/{unit}", value, unit, spread=abs(value) / 9)], target=unit)
            for day, value in enumerate(values)
        ]
        write(tmp_path / "runs", days)
    assert say("import", str(tmp_path / "runs"), place=place)[0] == 0
    for words in (
        ("outliers",),
        ("regressions", "--all"),
        ("compare", "until=2025-01-07", "since=2025-01-07", "--all"),
        ("compare", "since=2025-01-01", "since=2025-01-01"),
        ("trend", "a/1"),
    ):
        code, out, err = say(*words, place=place)
        assert (code, err) in ((0, ""), (1, ""), (3, "")) or "no measure 'a/1'" in err
        assert not re.search(r"\b(nan|inf)\b", out)
        json_code, out, _ = say(*words, "--json", "-", place=place)
        assert json_code == code
        assert not out or json.loads(out)
