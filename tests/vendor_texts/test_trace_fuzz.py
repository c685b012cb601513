"""A small share of tests/support/fuzz_traces.py: damaged traces for every reader, with a seed."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("msgspec")
pytest.importorskip("perfetto")
pytest.importorskip("adbc_driver_sqlite")

from typing import TYPE_CHECKING

from tests.support import fuzz_traces

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, bytes]]]:
    return fuzz_traces.seeds(tmp_path_factory.mktemp("seeds"))


def test_every_reader_has_inputs(files: dict[str, list[tuple[str, bytes]]]) -> None:
    from portagpu.traces.analysis import reading

    modules = {reader.__name__.rpartition(".")[2] for reader in reading.readers()}
    assert len(files) >= len(modules), f"inputs for {sorted(files)}, readers {sorted(modules)}"


def test_undamaged_inputs_are_read(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    from portagpu.traces.analysis import reading

    for kind, each in files.items():
        for name, data in each:
            path = tmp_path / name
            path.write_bytes(data)
            capture = reading.read(path)
            assert capture.tables or capture.totals or capture.metrics, (kind, name)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_inputs_give_one_line_or_a_part(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path, seed: int
) -> None:
    wrong = []
    for number, (kind, name, data) in enumerate(fuzz_traces.inputs(files, 100, seed)):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(data)
        if found := fuzz_traces.check(path):
            wrong.append(f"{kind} {name} {number}: {found}")
    assert not wrong, "\n".join(wrong)


def test_check_notices_what_is_wrong(
    files: dict[str, list[tuple[str, bytes]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portagpu.facts.captures.model import Capture, Source, table
    from portagpu.traces.analysis import reading

    path = tmp_path / "x"
    backwards = {"kernel": table({"start_ns": [5], "end_ns": [4]})}
    captures = {
        "an event ends before it starts": Capture(Source("x", "y"), backwards),  # type: ignore[arg-type]
        "no sentence says so": Capture(Source("x", "y"), dropped=3),
    }
    for words, capture in captures.items():
        monkeypatch.setattr(reading, "read", lambda _, capture=capture: capture)
        assert words in str(fuzz_traces.check(path))
    monkeypatch.setattr(reading, "read", lambda _: next(iter(())))
    assert "StopIteration" in str(fuzz_traces.check(path))
