"""Readers of code objects, cubins and ptxas's report, over files that are written here by hand."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("elftools")
pytest.importorskip("msgpack")


from tests.vendor_texts.test_machine_code_readers import KERNEL, code_object, read


def test_damaged_files_raise_nothing_but_value_errors():
    numbers = random.Random(20261121)  # noqa: S311 - reproducible, not secret
    whole = code_object([KERNEL])
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole[: numbers.randrange(len(whole) + 1)])
        for _ in range(numbers.randrange(4)):
            if damaged:
                damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        try:
            read(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 1000
