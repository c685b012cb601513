"""Random programs of generators: the model by hand, a right device, and faults by their words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import given, seed, settings

import portagpu
from portagpu.suites.search import draws, generators
from portagpu.suites.search.generators import Model, differ
from portagpu.suites.search.worker import SETTINGS
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from portagpu.suites.search.area import Program

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


def test_an_offset_is_one_of_a_seed() -> None:
    drawn = ("rand", 64, "float32")
    model = Model({"default": (0, ()), "g0": (5, ())})
    model.save("default", "s0", drawn)
    model.draw("default", drawn)
    assert model.rewind("g0", "s0") is None, "another seed"
    assert model.rewind("default", "s1") is None, "nothing is saved there"
    assert model.rewind("default", "s0") == drawn
    assert model.states["default"] == (0, ())


def test_a_device_without_offsets_is_asked_for_none() -> None:
    assert generators.offset_of(torch.Generator()) is None
    assert difference([("offset", DEFAULT), ("rewind", {**DEFAULT, "slot": "s0"})]) == ""


def _stepped(generator: Any) -> Any:
    """Generators of its seed, each one number further."""
    other = torch.Generator()
    other.manual_seed(generator.initial_seed())
    while True:
        yield other
        torch.rand(1, generator=other)


def _offset(generator: Any) -> int:
    """What a generator with offsets says: four for each number, as Philox counts."""
    steps = enumerate(_stepped(generator))
    state = generator.get_state()
    return next(4 * each for each, at in steps if torch.equal(at.get_state(), state))


def _put(generator: Any, offset: int) -> None:
    states = (at.get_state() for at in _stepped(generator))
    generator.set_state(next(state for each, state in enumerate(states) if 4 * each == offset))


ASK, SAVE = ("offset", DEFAULT), ("save", {**DEFAULT, **DRAW, "slot": "s0"})
OFFSETS: list[Program] = [
    [ASK, ("draw", {**DEFAULT, **DRAW}), ASK],
    [SAVE, ("draw", {**DEFAULT, **DRAW}), ("rewind", {**DEFAULT, "slot": "s0"}), ASK],
    [("draw", {"generator": "g0", **DRAW}), ("offset", {"generator": "g0"}), SAVE, ASK],
    [SAVE, ("seed", {**DEFAULT, "value": 7, "via": "own"}), ("rewind", {**DEFAULT, "slot": "s0"})],
]


def _refuse(generator: Any, offset: int) -> None:
    raise RuntimeError("offset must be a multiple of 4")


@pytest.mark.parametrize(
    ("asked", "put", "program", "reported"),
    [
        *[(_offset, _put, program, "") for program in OFFSETS],
        (lambda g: _offset(g) + 4, _put, OFFSETS[0], "default is 4 after its seed, not 0"),
        (lambda g: 0, _put, OFFSETS[0], "the offset of default is 0 before a draw and after it"),
        (
            lambda g: _offset(g) * (1 + (g is not torch.default_generator)),
            *(_put, OFFSETS[2], "is 256, and the one of g0 was 512, with the same seed"),
        ),
        (_offset, lambda g, offset: None, OFFSETS[1], "had the same seed and the same draws"),
        (_offset, lambda g, offset: _put(g, offset + 4), OFFSETS[1], "had the same seed and the"),
        (_offset, _refuse, OFFSETS[1], "default refuses the offset 0, which it had"),
    ],
)
def test_a_device_with_offsets_keeps_them(
    monkeypatch: pytest.MonkeyPatch, asked: Any, put: Any, program: Program, reported: str
) -> None:
    monkeypatch.setattr(generators, "offset_of", asked)
    monkeypatch.setattr(generators, "put_offset", put)
    found = difference(program)
    assert reported in found if reported else found == "", found


def test_programs_ask_for_offsets_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(count: int = 200) -> set[str]:
        found: set[str] = set()

        @settings(SETTINGS, max_examples=count)
        @seed(1)
        @given(generators.AREA.programs(portagpu.backend("cpu")))
        def each(program: Program) -> None:
            found.update(name for name, _ in program)

        each()
        return found

    assert not names() & {"offset", "rewind"}
    monkeypatch.setattr(generators, "offset_of", lambda generator: 0)
    assert names() >= {"offset", "rewind"}


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
    assert not differ((0, (one,)), (0, (two,))), "Philox advances in the same way for many draws"
    assert not differ((0, ()), (0, (("randperm", 1, "float32"),)))
    assert not differ((5, (one,)), (5, (one,)))


def test_the_bound_of_a_mean_is_hoeffdings() -> None:
    # by hand: sqrt(ln(2e12) / 2000) for 1000 numbers in [0, 1)
    found = draws._mean_bound(draws.draws()["rand"], 1000)
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
    assert torch.equal(torch.get_rng_state(), before), "the program left its numbers"


def test_faults_are_many_and_have_names() -> None:
    found = faults_of("generators")
    assert len(found) > 200
    assert len({each.name for each in found}) == len(found)
