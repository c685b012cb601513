"""The model of gradient scaling by hand, programs on a right device, and reported faults."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import portagpu
from portagpu.suites.search.scaler import AREA, Group, Model
from tests.support.faults import faults_of

pytestmark = pytest.mark.torch


class _Rank:
    def __init__(self) -> None:
        self.gpu = portagpu.backend("cpu")


def _difference(*program: tuple[str, dict[str, Any]]) -> str:
    rank: Any = _Rank()
    return AREA.difference(rank, list(program))


def _model() -> Model:
    model = Model(scale=8.0, interval=2)
    model.groups["a"] = Group([[1.0]], ["float32"], [None])
    model.used = True
    return model


def _cycle(model: Model, gradient: float) -> None:
    model.groups["a"].gradients = [None]
    model.add("a", 0, [gradient])
    assert model.step("a")
    assert model.update(None)


def test_the_scale_grows_after_an_interval_and_backs_off() -> None:
    model = _model()
    _cycle(model, 1.0)
    assert (model.scale, model.tracker) == (8.0, 1)
    _cycle(model, 1.0)
    assert (model.scale, model.tracker) == (16.0, 0)
    assert model.groups["a"].values == [[-1.0]]
    _cycle(model, math.inf)
    assert (model.scale, model.tracker) == (8.0, 0)
    assert model.groups["a"].values == [[-1.0]]


def test_calls_in_the_wrong_order_are_refused() -> None:
    model = _model()
    assert not model.update(None)
    assert not model.step("a")
    model.add("a", 0, [1.0])
    model.update(4.0)
    assert model.unscale("a")
    assert not model.unscale("a")
    assert model.step("a")
    assert not model.step("a")


def _loss(**given: Any) -> tuple[str, dict[str, Any]]:
    plain = {"optimizer": "both", "bad": "none", "where": 0, "seed": 2, "skip": False}
    return "loss", {**plain, **given}


def _train(**given: Any) -> tuple[str, dict[str, Any]]:
    plain = {"optimizer": "both", "bad": "none", "where": 0, "seed": 2, "unscale": True}
    return "train", {**plain, "cycles": 2, **given}


def _fused(**given: Any) -> tuple[str, dict[str, Any]]:
    usual = {"kind": "adamw", "scale": 4.0, "infinite": True, "seed": 0}
    return "fused", usual | given


def test_a_device_without_fused_steps_is_not_asked_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(*given: Any, **named: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(torch, "_fused_adamw_", lacking)
    assert _difference(_fused()) == ""


def test_programs_agree_on_a_right_device() -> None:
    chance = random.Random(5)  # noqa: S311 - test data, no secret
    for _ in range(40):
        program: list[tuple[str, dict[str, Any]]] = []
        for _ in range(8):
            which = {"optimizer": chance.choice("ab")}
            new = {"scale": 4.0, "growth": 4.0, "backoff": 0.25, "interval": 1}
            program.append(
                chance.choice(
                    (
                        _loss(bad=chance.choice(("none", "inf", "nan")), where=chance.randrange(3)),
                        _train(bad=chance.choice(("none", "-inf")), seed=chance.randrange(4)),
                        ("step", which),
                        ("unscale", which),
                        ("clip", which),
                        ("zero", which),
                        ("update", {"new": chance.choice((None, 4.0)), "tensor": True}),
                        ("save", {}),
                        ("load", {"fresh": chance.random() < 0.5}),
                        ("half", {}),
                        ("fused", _fused(seed=chance.randrange(8))[1]),
                        ("new", {**new, "enabled": chance.random() < 0.7, "foreach": True}),
                    )
                )
            )
        assert _difference(*program) == "", program


@pytest.mark.parametrize(
    ("name", "program", "reported"),
    [
        (
            "the check: of all but the first gradient: nothing is seen",
            [_train(bad="inf", where=1, cycles=1)],
            "was taken, with gradients that are not finite",
        ),
        ("update: everywhere: does not grow", [_train()], "the scale is 8 in cycle 2"),
        ("update: everywhere: does not back off", [_train(bad="nan")], "the scale is 8"),
        (
            "step: of any optimizer: forgets that it was taken",
            [_loss(), ("step", {"optimizer": "a"}), ("step", {"optimizer": "a"})],
            "was not refused",
        ),
        (
            "the check: of bfloat16: it stays scaled",
            [_loss(), ("unscale", {"optimizer": "a"})],
            "the gradient of parameter 2 of a",
        ),
        (
            "state_dict: everywhere: loses _growth_tracker",
            [_train(cycles=1)],
            "_growth_tracker",
        ),
        (
            "adamw: everywhere: ignores what is not finite",
            [_fused()],
            "a fused step of adamw that was to be skipped gave 0.5 at element 0 of parameter 0",
        ),
        (
            "sgd: everywhere: ignores the scale",
            [_fused(kind="sgd", infinite=False)],
            "a fused step of sgd of gradients times 4 gave -3 at element 0 of parameter 0, not 0",
        ),
        (
            "adam: everywhere: leaves the rest of a vector of four",
            [_fused(kind="adam", infinite=False)],
            "gave 1 at element 0 of parameter 0, not 0.5",
        ),
        (
            "gpu.GradScaler: everywhere: ignores the scale",
            [_loss()],
            "the scale is 65536",
        ),
    ],
)
def test_a_fault_is_reported(name: str, program: list[Any], reported: str) -> None:
    fault = next(each for each in faults_of("scaler") if each.name == name)
    assert _difference(*program) == ""
    with fault.apply():
        found = _difference(*program)
    assert reported in found


def test_the_catalogue_is_large_and_has_one_name_each() -> None:
    names = [each.name for each in faults_of("scaler")]
    assert len(names) == len(set(names)) >= 60
