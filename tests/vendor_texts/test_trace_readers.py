"""Readers of captures that other distributions bring: a broken one stops no other."""

from __future__ import annotations

import textwrap
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")

from portagpu.facts.readings.model import FormatError
from portagpu.traces.analysis import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

READER = """
    from portagpu.facts.captures.model import Capture, Source
    KIND = "acme trace"
    def matches(head, path):
        return head.startswith(b"ACME")
    def read(path):
        return Capture(Source(str(path), KIND, "acme"))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lays a package of another distribution with these modules onto the search path."""

    def lay(name: str, **modules: str) -> None:
        package = tmp_path / name
        package.mkdir()
        for module, text in {"__init__": "", **modules}.items():
            (package / f"{module}.py").write_text(textwrap.dedent(text), "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        point = EntryPoint(name, name, reading.GROUP)
        points = [point, *reading.entry_points(reading.GROUP)]
        monkeypatch.setattr(reading, "entry_points", lambda _: points)

    reading.all_readers.cache_clear()
    yield lay
    reading.all_readers.cache_clear()


def test_a_reader_of_another_distribution_reads_its_files(
    install: Callable[..., None], tmp_path: Path
) -> None:
    install("acme_captures_good", acme=READER, _shared="raise RuntimeError")
    trace = tmp_path / "a.trace"
    trace.write_bytes(b"ACME 1")
    assert reading.read(trace).source.tool == "acme"
    assert reading.all_readers().problems == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no licence\\nhere')", "it raised RuntimeError: no licence here"),
        ("import sys; sys.exit(3)", "it raised SystemExit: 3"),
        ("import a_module_that_is_not_there", "it raised ModuleNotFoundError"),
        ("KIND = 'acme trace'", "needs KIND, matches and read"),
    ],
)
def test_a_broken_one_is_named_and_stops_no_other(
    text: str, said: str, install: Callable[..., None], tmp_path: Path
) -> None:
    name = f"acme_{tmp_path.name}"
    install(name, acme=text)
    trace = tmp_path / "a.json"
    trace.write_text('{"traceEvents": []}', "utf-8")
    assert reading.read(trace).source.format == "Kineto JSON"
    trace.write_text("ACME", "utf-8")
    with pytest.raises(FormatError) as refused:
        reading.read(trace)
    assert name in str(refused.value)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
