"""Missing waits at every length of a kernel, and more programs on a right device."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from portagpu.suites.search.ordering import Ordering
from tests.support.virtual_device import LENGTHS, VirtualKernels
from tests.torch.test_search_ordering import (
    ADDED,
    FEW,
    NAMED,
    OldDevice,
    at_every_length,
    first_difference,
    passes_and_is_judged,
    smallest_program_names,
)

pytestmark = pytest.mark.torch


DEAR = ("stream.wait_stream", "event.wait", "stream.synchronize")
"""Of ``WAITS``, by the programs until they are caught: tests/full has them, at every length."""


SOME = LENGTHS[::3]
"""Lengths of kernels that every run tries; tests/full tries all."""


WAITS = (
    "device.synchronize",
    "stream.synchronize",
    "event.synchronize",
    "stream.wait_stream",
    "stream.wait_event",
    "event.wait",
)


def missing_wait_is_caught(call, lengths):
    chosen = at_every_length(call, "does nothing")
    assert len(chosen) == len(LENGTHS), f"{call} is not there at every length"
    for length, fault in zip(LENGTHS, chosen, strict=True):
        if length not in lengths:
            continue
        with fault.apply():
            found = first_difference(Ordering(VirtualKernels), fault.device(), 600)
        assert found, f"{fault.name} was not caught"


@pytest.mark.parametrize("kernel_s", LENGTHS)
def test_a_right_device_passes_and_is_judged_at_every_length(kernel_s: float) -> None:
    passes_and_is_judged(kernel_s, 100)


@pytest.mark.parametrize("call", WAITS)
def test_a_missing_wait_is_caught_at_every_length(call: str) -> None:
    missing_wait_is_caught(call, LENGTHS)


@pytest.mark.parametrize("number", [i for i in range(len(NAMED)) if i not in FEW])
def test_the_smallest_program_names_the_fault(number: int) -> None:
    smallest_program_names(number)


def test_a_newer_backend_is_asked_for_all_that_came_with_its_contract():
    gpu = OldDevice(20e-6, (1, 2))
    gpu.asked.clear()
    assert first_difference(Ordering(VirtualKernels), gpu, 200) == ""
    assert gpu.asked == {*ADDED, "pool"}


@pytest.mark.parametrize("call", [each for each in WAITS if each not in DEAR])
def test_a_missing_wait_is_caught(call):
    missing_wait_is_caught(call, SOME)


@pytest.mark.parametrize(("contract", "asked"), [((1, 0), set()), ((1, 1), set())])
def test_an_older_backend_is_not_asked_for_what_came_later(contract, asked):
    gpu = OldDevice(20e-6, contract)
    gpu.asked.clear()
    assert first_difference(Ordering(VirtualKernels), gpu, 200) == ""
    assert "replay" in gpu.history or gpu.streams, "nothing ran"
    assert gpu.asked == asked
