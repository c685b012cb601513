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
