"""Random programs of generators: the model by hand, a right device, and faults by their words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import portagpu
from portagpu.search import generators
from portagpu.search.generators import Model, differ
from tests import suite_harness
from tests.faults import faults_of

if TYPE_CHECKING:
    from portagpu.search.programs import Program

pytestmark = pytest.mark.torch

DRAW: dict[str, Any] = {"kind": "rand", "n": 64, "dtype": "float32"}
DEFAULT = {"generator": "default"}


def difference(program: Program) -> str:
    """What the CPU does differently in that program."""
    rank: Any = type("OneRank", (), {"gpu": portagpu.backend("cpu"), "rank": 0})
    return generators.AREA.difference(rank, program)


def test_a_state_is_a_seed_and_what_was_drawn_since() -> None:
    model = Model({"default": (0, ()), "g0": (0, ())})
    drawn = ("rand", 64, "float32")
    assert model.draw("default", drawn) == (0, ())
    assert model.states == {"default": (0, (drawn,)), "g0": (0, ())}
    model.save("default", "s0", drawn)
    model.seed("default", 7, everywhere=True)
    assert model.draw("default", ("rand", 0, "float32")) == model.states["default"] == (7, ())
    assert model.restore("g0", "s0") == drawn
    assert model.states["g0"] == (0, (drawn,))
    assert model.restore("g0", "s1") is None


def test_a_block_puts_the_default_generators_back() -> None:
    model = Model({"default": (1, ()), "g0": (2, ())})
    assert not model.join()
    model.fork()
    model.seed("default", 3, everywhere=False)
    model.seed("g0", 4, everywhere=False)
    assert model.join()
    assert model.states == {"default": (1, ()), "g0": (4, ())}


def test_which_states_have_to_differ() -> None:
    one, two = ("rand", 64, "float32"), ("randn", 5, "float64")
    assert differ((0, ()), (1, ()))
    assert not differ((1, ()), (2**32 + 1, ())), "ATen's CPU generator takes 32 bits"
    assert differ((0, ()), (0, (one,)))
    assert not differ((0, (one,)), (0, (two,))), "Philox advances alike for many draws"
    assert not differ((0, ()), (0, (("randperm", 1, "float32"),)))
    assert not differ((5, (one,)), (5, (one,)))


def test_the_bound_of_a_mean_is_hoeffdings() -> None:
    # by hand: sqrt(ln(2e12) / 2000) for 1000 numbers in [0, 1)
    found = generators._mean_bound(generators.draws()["rand"], 1000)
    assert found == pytest.approx(math.sqrt(28.324168 / 2000), rel=1e-6)


@pytest.mark.parametrize(
    "program",
    [
        [("restore", {**DEFAULT, "slot": "s0"}), ("join", {}), ("rerun", DEFAULT)],
        [("draw", {**DEFAULT, **DRAW}), ("fork", {}), ("draw", {**DEFAULT, **DRAW}), ("join", {})],
        [("save", {**DEFAULT, **DRAW, "slot": "s0"}), ("restore", {**DEFAULT, "slot": "s0"})],
    ],
)
def test_programs_that_pass(program: Program) -> None:
    before = torch.get_rng_state()
    assert difference(program) == ""
    assert torch.equal(torch.get_rng_state(), before), "the program left its numbers behind"


def test_a_right_device_passes() -> None:
    suite_harness.search_here(portagpu.backend("cpu"), "generators")


FAULTS = {
    "rand: of more than 64: does not advance": "repeats draw",
    "randn: everywhere: repeats its first half": "has its first half again as its second",
    "uniform_: everywhere: is not repeated by the seed": "had the same seed and the same draws",
    "randperm: everywhere: leaves the last element": "lacks ",
    "rand: from the default generator: gives the upper end": "outside 0 to 1",
    "manual_seed: of the device: does nothing": "is",
    "set_rng_state: of the device: draws one number": "had the same seed and the same draws before",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str) -> None:
    fault = next(each for each in faults_of("generators") if each.name == name)
    with fault.apply(), pytest.raises(AssertionError, match=FAULTS[name]):
        suite_harness.search_here(portagpu.backend("cpu"), "generators")


def test_faults_are_many_and_have_names() -> None:
    found = faults_of("generators")
    assert len(found) > 200
    assert len({each.name for each in found}) == len(found)
