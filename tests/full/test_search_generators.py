"""Random programs of generators: the model by hand, a right device, and faults by their words."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

import portagpu
from tests.support import suite_harness
from tests.support.faults import faults_of

pytestmark = pytest.mark.torch


FAULTS = {
    "rand: of more than 64: does not advance": "repeats draw",
    "randn: everywhere: repeats its first half": "has its first half again as its second",
    "uniform_: everywhere: is not repeated by the seed": "had the same seed and the same draws",
    "randperm: everywhere: leaves the last element": "lacks ",
    "rand: from the default generator: gives the upper end": "outside 0 to 1",
    "manual_seed: of the device: does nothing": "is",
    "set_rng_state: of the device: draws one number": "had the same seed and the same draws before",
}


def test_a_right_device_passes() -> None:
    suite_harness.search_here(portagpu.backend("cpu"), "generators")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    fault = next(each for each in faults_of("generators") if each.name == name)
    with fault.apply(), pytest.raises(AssertionError, match=FAULTS[name]):
        suite_harness.search_here(portagpu.backend("cpu"), "generators")
