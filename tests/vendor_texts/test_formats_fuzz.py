"""Readers of vendors' formats answer mutated inputs with findings or with FormatError."""

from __future__ import annotations

from typing import Final

import pytest

from portagpu.facts.formats import integer, is_error, stated
from portagpu.facts.formats.cleaning import decode_text
from tests.support import fuzz_formats
from tests.support.fuzz_formats import Seed, fixtures, format_modules, fuzz, mutation

EACH: Final = 100
"""Mutations of each fixture; tests/full has more, and tests/deep those of new seeds."""


def test_no_mutation_of_a_fixture_breaks_its_reader() -> None:
    seeds = {module: fixtures(module) for module in format_modules()}
    report = fuzz((seed for found in seeds.values() for seed in found), EACH)
    assert not report.faults, report.faults[:5]
    for module, found in seeds.items():
        read = report.outcomes[module, "findings"]
        assert not found or read > len(found), f"nothing of {module} was ever read"


def test_mutations_are_the_same_every_time_and_differ_from_one_another() -> None:
    origin = Seed("a/b", "x:y", b"GPU 0: one\nGPU 1: two\n" * 20)
    first = [mutation(origin, number, 1) for number in range(50)]
    assert first == [mutation(origin, number, 1) for number in range(50)]
    assert first[0] == origin.data
    assert len(set(first)) > 40
    assert first[1:] != [mutation(origin, number, 2) for number in range(1, 50)]


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return Findings(kind='x')", "findings"),
        ("raise FormatError('not of this format')", "refused"),
        ("raise FormatError('two\\nlines')", "wrong"),
        ("raise KeyError('x')", "raised"),
        ("return Findings(kind='x', problems=('two\\nlines',))", "wrong"),
        ("return Findings(kind='x', versions={'x': float('inf')})", "wrong"),
        ("return bytearray(1 << 30)", "memory"),
        ("import os; os._exit(3)", "died"),
        ("while True: pass", "slow"),
    ],
)
def test_the_harness_distinguishes_faults(
    tmp_path, monkeypatch: pytest.MonkeyPatch, body: str, outcome: str
) -> None:
    source = "from portagpu.facts.readings import Findings, FormatError\ndef parse(text):\n    "
    (tmp_path / "reader_under_test.py").write_text(source + body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = fuzz([Seed("some/seed", "reader_under_test:parse", b"x")], 0, cpu_s=0.3)
    assert dict(report.outcomes) == {("some", outcome): 1}
    assert bool(report.faults) == (outcome not in ("findings", "refused"))


@pytest.mark.processes(4, "the child that dies, and those after it")
def test_one_that_dies_stops_no_other(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child goes on after the mutation of which the one before it died."""
    source = """
import os
from portagpu.facts.readings import FormatError
def parse(text):
    if text.startswith("x"):
        os._exit(3)
    raise FormatError("no")
"""
    (tmp_path / "reader_under_test.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ("a/1", "x/2", "b/3")
    seeds = [Seed(name, "reader_under_test:parse", name.encode()) for name in names]
    report = fuzz(seeds, 2)
    died = [n for n in range(3) if decode_text(mutation(seeds[1], n, 0)).startswith("x")]
    assert [(each.name, each.number) for each in report.faults] == [("x/2", n) for n in died]
    assert died
    assert report.outcomes["a", "refused"] == report.outcomes["b", "refused"] == 3
    assert report.outcomes["x", "refused"] == 3 - len(died)


def test_a_seed_names_the_function_that_reads_it() -> None:
    assert fuzz_formats.seed("a/b", decode_text, "é") == Seed(
        "a/b", "portagpu.facts.formats.cleaning:decode_text", "é".encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        "GPU 0: 40 °C\n".encode(),
        "GPU 0: 40 °C\r\n".encode(),
        "GPU 0: 40 °C\n".encode("utf-8-sig"),
        "GPU 0: 40 °C\r\n".encode("utf-16"),
        "GPU 0: 40 °C\n".encode("latin-1"),
        b"GPU 0: \x0040 \xb0C\r",
    ],
)
def test_bytes_become_the_same_text_however_they_were_written(data: bytes) -> None:
    assert decode_text(data) == "GPU 0: 40 °C\n"


def test_utf_16_without_its_mark_is_read_where_it_is_ascii() -> None:
    assert decode_text("GPU 0: 40 C\n".encode("utf-16-le")) == "GPU 0: 40 C\n"


@pytest.mark.parametrize("word", ["[Unknown Error]", "ERR!", "[GPU is lost]", "Unknown Error"])
def test_an_error_in_a_values_place_is_not_a_value_and_is_distinguished_from_not_available(
    word: str,
) -> None:
    assert stated(word) is None
    assert integer(word) is None
    assert is_error(word)
    assert not is_error("N/A")
    assert not is_error("0")
