"""The states of autocast by hand, programs on a right device, and faults that are reported."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import portagpu
from portagpu.suites.search.autocast.area import AREA
from portagpu.suites.search.autocast.state import EDGE, LOWER, State, right_elements
from portagpu.suites.search.numbers.formats import rounded
from tests.support.faults import faults_of

pytestmark = pytest.mark.torch


class _Rank:
    def __init__(self) -> None:
        self.gpu = portagpu.backend("cpu")


def _difference(*program: tuple[str, dict[str, Any]]) -> str:
    rank: Any = _Rank()
    return AREA.difference(rank, list(program))


ENTER: dict[str, Any] = {"dtype": None, "enabled": True, "cached": None, "via": "gpu"}
WEIGH: dict[str, Any] = {
    "number": 1,
    "dtype": "float32",
    "back": "no",
    "block": True,
    "op": "linear",
}


def _run(**given: Any) -> tuple[str, dict[str, Any]]:
    plain = {"op": "mm", "dtype": "float32", "other": "float32", "thread": False, "block": "none"}
    return "run", {**plain, "seed": 0, **given}


def test_a_block_restores_what_was_before() -> None:
    state = State("bfloat16")
    state.enter("float16", True, False)
    state.enter(None, False, None)
    assert (state.dtype, state.enabled, state.cached) == ("float16", False, False)
    assert state.leave()
    assert (state.dtype, state.enabled) == ("float16", True)
    assert state.leave()
    assert (state.dtype, state.enabled, state.cached) == ("bfloat16", False, True)
    assert not state.leave()


def test_operations_run_in_the_dtype_of_their_list() -> None:
    state = State("bfloat16", enabled=True)
    assert state.runs("mm", ["float32", "float16"], "cpu") == "bfloat16"
    assert state.runs("mm", ["float64", "float64"], "cpu") == "float64"
    assert state.runs("prod", ["bfloat16"], "cpu") == "float32"
    assert state.runs("exp", ["bfloat16"], "cpu") == "bfloat16"
    assert state.runs("exp", ["float16"], "cuda") == "float32"
    assert state.runs("cat", ["bfloat16", "float32"], "cpu") == "float32"
    assert State("bfloat16").runs("mm", ["float32"], "cpu") == "float32"


def test_operands_that_were_not_rounded_leave_a_sum() -> None:
    assert rounded(EDGE, "float16") == rounded(EDGE, "bfloat16") == 1.0
    first = right_elements("mm", [EDGE, -1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], "float32")[0]
    assert first.value == 2.0**-12
    assert first.bound < 2.0**-13


def test_programs_agree_on_a_right_device() -> None:
    chance = random.Random(3)  # noqa: S311 - test data, no secret
    dtypes = ("float32", "bfloat16", "float16", "float64")
    for _ in range(60):
        program: list[tuple[str, dict[str, Any]]] = []
        for _ in range(6):
            enter = {**ENTER, "dtype": chance.choice((None, "float16", "bfloat16"))}
            program.append(
                chance.choice(
                    (
                        ("enter", {**enter, "enabled": chance.random() < 0.7}),
                        ("leave", {"raising": chance.random() < 0.3}),
                        _run(op="every", dtype=chance.choice(dtypes), seed=chance.randrange(4)),
                        _run(op=chance.choice(LOWER), thread=True, block="decorate"),
                        ("weigh", {"number": 0, "dtype": "float32", "back": "now", "block": False}),
                        ("weigh", {"number": 0, "dtype": "float32", "back": "no", "block": True}),
                        ("change", {"number": 0, "how": chance.choice(("add_", "data"))}),
                        ("custom", {"cast": True, "dtype": "float32", "inside": False}),
                        ("query", {"thread": True}),
                    )
                )
            )
        assert _difference(*program) == "", program


@pytest.mark.parametrize(
    ("name", "program", "reported"),
    [
        (
            "mm: in a block: does not cast its operands",
            [("enter", ENTER), _run()],
            "mm of float32",
        ),
        ("mm: in a block: gives float32", [("enter", ENTER), _run()], "gave float32, not bfloat16"),
        (
            "leaving a block: everywhere: leaves its state",
            [("enter", ENTER), ("leave", {"raising": False})],
            "autocast is on and not off with 0 blocks open",
        ),
        (
            "the cache: everywhere: is never cleared",
            [
                ("weigh", {"number": 0, "dtype": "float32", "back": "no", "block": True}),
                ("change", {"number": 0, "how": "add_"}),
                ("weigh", {"number": 0, "dtype": "float32", "back": "no", "block": True}),
            ],
            "the leaf before it changed",
        ),
        (
            "the cache: of another dtype: is handed on",
            [("weigh", {**WEIGH, "inner": "bfloat16", "then": "float16"})],
            "the product with leaf 1 in a block of float16 gave",
        ),
        (
            "threads: in its own: begin in a block",
            [("enter", ENTER), ("query", {"thread": True})],
            "on and not off in another thread",
        ),
        (
            "custom_fwd: everywhere: ignores cast_inputs",
            [("enter", ENTER), ("custom", {"cast": True, "dtype": "float32", "inside": False})],
            "custom_fwd",
        ),
        (
            "gpu.autocast: everywhere: ignores enabled",
            [("enter", {**ENTER, "enabled": False})],
            "on and not off",
        ),
    ],
)
def test_a_fault_is_reported(name: str, program: list[Any], reported: str) -> None:
    fault = next(each for each in faults_of("autocast") if each.name == name)
    assert _difference(*program) == ""
    with fault.apply():
        found = _difference(*program)
    assert reported in found


def test_the_catalogue_is_large_and_has_one_name_each() -> None:
    names = [each.name for each in faults_of("autocast")]
    assert len(names) == len(set(names)) >= 80
