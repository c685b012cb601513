"""Verify on live ranks: what is right passes, each seeded fault fails and names its rank."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from portagpu.facts.nccl_tests.tables import TYPE_NAMES
from portagpu.runs.results.run import Verdict
from portagpu.suites.collectives import VerifyOptions, ranks
from portagpu.suites.collectives.ranks import REDOPS, Inputs, first_wrong, kinds
from portagpu.suites.collectives.verify import WrongOptions, _point_result

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
def test_sums_of_integers_wrap(name: str) -> None:
    dtype = getattr(torch, name)
    inputs = Inputs(dtype=dtype, world=4, length=64, redop="sum", kind="exact", seed=1)
    sent = [inputs.sent(rank).tolist() for rank in range(4)]
    bits = 8 * dtype.itemsize
    wrapped = [sum(column) % (1 << bits) for column in zip(*sent, strict=True)]
    assert [value % (1 << bits) for value in inputs.reduced()[0].tolist()] == wrapped
    top = max(max(each) for each in sent)
    assert top > (1 << (bits - 3)), "the values do not use the range"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_any_order_of_random_values_is_within_the_bound(name: str) -> None:
    dtype = getattr(torch, name)
    inputs = Inputs(dtype=dtype, world=8, length=256, redop="sum", kind="random", seed=3)
    exact, bound = inputs.reduced()
    assert bound is not None
    for start in range(8):
        total = torch.zeros(256, dtype=dtype)
        for step in range(8):
            total = total + inputs.sent((start + step) % 8)
        assert first_wrong(total, exact, bound)[0] == 0
    # a sum in a narrower dtype is not
    lower = {"float64": torch.float32, "float32": torch.bfloat16}.get(name, torch.float8_e4m3fn)
    narrow = exact.to(lower).to(dtype)
    assert first_wrong(narrow, exact, bound)[0] > 0


def test_the_first_wrong_element_is_named() -> None:
    right = torch.tensor([1.0, 2.0, 3.0])
    assert first_wrong(torch.tensor([1.0, 2.5, 9.0]), right, None) == (2, 1, "2.5", "2")
    nan = torch.tensor([1.0, float("nan"), 3.0])
    bound = torch.full((3,), 0.5, dtype=torch.float64)
    assert first_wrong(nan, right, bound)[:2] == (1, 1)
    # a zero of the other sign is another value
    assert first_wrong(torch.tensor([-0.0]), torch.tensor([0.0]), None)[0] == 1
    empty = torch.zeros(0)
    assert first_wrong(empty, empty, None)[0] == 0


def test_values_differ_between_ranks_and_calls() -> None:
    def sent(rank: int, seed: int) -> torch.Tensor:
        return Inputs(
            dtype=torch.int32, world=2, length=8, redop="sum", kind="exact", seed=seed
        ).sent(rank)

    assert torch.equal(sent(0, 1), sent(0, 1))
    assert not torch.equal(sent(0, 1), sent(1, 1))
    assert not torch.equal(sent(0, 1), sent(0, 2))


def test_every_reduction_has_values() -> None:
    for redop in REDOPS:
        assert kinds(torch.float32, redop, 4), redop


def test_points_are_those_of_the_options() -> None:
    options = VerifyOptions(dtypes=("float64",), sizes=(0, 64, 100))
    assert options.points("all_reduce", 4) == [("float64", 0), ("float64", 8), ("float64", 12)]
    # 64 and 100 bytes are 2 and 3 doubles for each of 4 ranks
    assert options.points("all_gather", 4) == [("float64", 0), ("float64", 2), ("float64", 3)]
    every = VerifyOptions().points("broadcast", 2)
    assert {dtype for dtype, _ in every} == set(TYPE_NAMES)


@pytest.mark.parametrize(
    "wrong",
    [{"operations": ("barrier",)}, {"dtypes": ("fp32",)}, {"worlds": (0,)}, {"sizes": (-1,)}],
)
def test_unknown_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongOptions):
        VerifyOptions(**wrong)


def test_only_a_dtype_that_is_refused_at_once_has_no_further_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One dtype is refused, one is wrong at first: a wrong point is not timed, others are."""
    timed = []

    def check(_: object, __: str, dtype: str, count: int) -> ranks.PointAnswer:
        wrong = "an element is wrong" if (dtype, count) == ("float16", 1) else ""
        return ranks.PointAnswer(dtype, count, checked=int(dtype != "int8"), sentence=wrong)

    monkeypatch.setattr(ranks, "_check_point", check)
    monkeypatch.setattr(ranks, "sum_of_ranks", lambda _, own: own)
    monkeypatch.setattr(ranks, "Stopwatch", lambda _: None)
    monkeypatch.setattr(ranks, "_time_point", lambda *given: timed.append(given[2]))
    rank: Any = SimpleNamespace(gpu=None, step=lambda _: None)
    points = [(dtype, count) for count in (1, 2) for dtype in ("int8", "float16", "float32")]
    found = ranks.sweep(rank, operation="broadcast", points=points, repeats=1)
    assert [(each["dtype"], each["count"]) for each in found] == [
        *(("int8", 1), ("float16", 1), ("float32", 1)),
        *(("float16", 2), ("float32", 2)),
    ]
    assert [(each.dtype, each.count) for each in timed] == [
        *(("float32", 1), ("float16", 2), ("float32", 2)),
    ]


def test_a_wrong_value_is_one_unless_the_library_refused_a_rank_alone() -> None:
    right = ranks.PointAnswer("float32", 4, checked=2, wrong={"in_place": 0})
    wrong = replace(right, wrong={"in_place": 3}, sentence="element 0 is 1, not 2")
    alone = replace(wrong, refused_alone=True)
    found = {}
    for name, answer in (("right", right), ("wrong", wrong), ("alone", alone)):
        result = _point_result("all_reduce", 2, [asdict(right), asdict(answer)], "")
        found[name] = (result.verdict, result.value, "wrong_value" in result.extra, result.reason)
    assert found == {
        "right": (Verdict.PASS, 0, False, ""),
        "wrong": (Verdict.FAIL, 3, True, "element 0 is 1, not 2"),
        "alone": (Verdict.FAIL, 3, False, "element 0 is 1, not 2"),
    }
