"""Missing waits at every length of a kernel, and more programs on a right device."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from tests.support.virtual_device import LENGTHS
from tests.torch.test_search_ordering import (
    DEAR_TO_SHRINK,
    WAITS,
    missing_wait_is_caught,
    passes_and_is_judged,
    smallest_program_names,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kernel_s", LENGTHS)
def test_a_right_device_passes_and_is_judged_at_every_length(kernel_s: float) -> None:
    passes_and_is_judged(kernel_s, 100)


@pytest.mark.parametrize("call", WAITS)
def test_a_missing_wait_is_caught_at_every_length(call: str) -> None:
    missing_wait_is_caught(call, LENGTHS)


@pytest.mark.parametrize("number", DEAR_TO_SHRINK)
def test_the_smallest_program_names_the_fault(number: int) -> None:
    smallest_program_names(number)
