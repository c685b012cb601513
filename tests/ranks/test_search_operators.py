"""Torch's operators against float64: bounds worked by hand, a right device, and reported faults."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from portagpu.suites.search.operators.calls import FACTOR, growth, unit_roundoff
from portagpu.suites.search.operators.more import MORE
from portagpu.suites.search.operators.samples import shown
from tests.conftest import ROOT

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

RANKS = ROOT / "tests/support/operator_ranks.py"


FAULTS = {
    "matrix products: in float32: does not write the last element": (
        ("linalg", "mm", "", "float32"),
        ("mm in float32, sample 0 (", "forward: element ", " is 0, not ", "times the bound)"),
    ),
    "sums and differences: of int64: adds to the last element": (
        ("elementwise", "sub", "", "int64"),
        ("sub in int64", "(has to be equal)"),
    ),
    "exponentials: in bfloat16: has the other sign in the first element": (
        ("elementwise", "exp", "", "bfloat16"),
        ("exp in bfloat16", "element 0 of the result is -", "times the bound)"),
    ),
    "reductions: everywhere: gives another dtype": (
        ("reductions", "sum", "", "int64"),
        ("sum in int64", "forward: the result is int32, not int64"),
    ),
    "products and quotients: in backward: does not write the second half": (
        ("elementwise", "mul", "", "float64"),
        ("mul in float64", "backward: ", "the gradient of input"),
    ),
    "angles: of a strided input: is off by one element": (
        ("elementwise", "sin", "", "float32"),
        ("sin in float32", "not contiguous: element "),
    ),
    "products and quotients: in float32: writes its input": (
        ("elementwise", "mul", "", "float32"),
        ("mul in float32", "forward: the call changed its input"),
    ),
    "softmax: in float32: gives NaN last": (
        ("reductions", "softmax", "", "float32"),
        ("softmax in float32", " is nan, not "),
    ),
    "sorting: of more than 32 elements: loses a dimension": (
        ("movement", "sort", "", "float32"),
        ("sort in float32", "has the shape ["),
    ),
    "exponentials: of an odd size: gives NaN last": (
        ("elementwise", "exp", "", "float32"),
        ("exp in float32", "(33", " is nan, not "),
    ),
    "reductions: of more than 32 elements: does not write the last element": (
        ("reductions", "amax", "", "float32"),
        ("amax in float32", "element ", " is 0, not "),
    ),
    # after pytorch#102968, #188344 and tensorflow#115733
    "convolutions: of a window above 16: does not write the last element": (
        ("nn", "nn.functional.conv2d", "", "float32", MORE),
        ("conv2d in float32", "(1x1x40x40, 4x1x17x17, stride=10), forward: element "),
    ),
    "convolutions: of another layout of the gradient: is off by one element": (
        ("nn", "nn.functional.conv2d", "", "float32"),
        ("conv2d in float32", "backward", "the gradient of input"),
    ),
    "reductions: of large numbers in float16: gives NaN last": (
        ("reductions", "std", "", "float16", MORE),
        ("std in float16", " is nan, not "),
    ),
    # after pytorch#79849, #108503 and #191937
    "sums and differences: of a boolean without dimensions: adds to the last element": (
        ("elementwise", "add", "", "int64", MORE),
        ("add in int64", "(has to be equal)"),
    ),
    "attention: of more than 128 columns: does not write the second half": (
        ("nn", "nn.functional.scaled_dot_product_attention", "", "float16", MORE),
        ("attention in float16", "2x130x4", "not contiguous: element "),
    ),
    # after pytorch#97135
    "interpolation: from a size that is not a multiple: does not write the last element": (
        ("nn", "nn.functional.interpolate", "nearest", "float32", MORE),
        ("interpolate (nearest) in float32", "backward", "element ", " is 0, not "),
    ),
    "copies: of a broadcast input: does not write the second half": (
        ("nn", "nn.functional.scaled_dot_product_attention", "", "float16", MORE),
        ("attention in float16", "2x33x4", "not contiguous: element "),
    ),
    "exponentials: in float32: gives the result before": (
        ("elementwise", "exp", "", "float32"),
        ("exp in float32", "second call: element "),
    ),
}


@pytest.fixture(scope="module")
def found(rank_server: Ranks) -> dict[str, Any]:
    """What ``tests/support/operator_ranks.py`` found in a process of its own.

    Torch's database stays out of this one: it changes what torch does.
    """
    faults = [[f"operators-{kind}", name, *pair] for name, ((kind, *pair), _) in FAULTS.items()]
    outcome = rank_server.run(
        f"{RANKS}:everything",
        arguments={"step": 67, "faults": faults},
        backend="cpu",
        group=False,
        timeout_s=120,
    )
    assert outcome.ok, outcome.sentence
    value: dict[str, Any] = outcome.values[0]
    return value


def test_the_factor_is_that_of_the_chance() -> None:
    # by hand: 2 exp(-l^2 / 2) = 1e-12, l^2 = 2 ln(2e12) = 56.65
    assert pytest.approx(7.5266, abs=1e-4) == FACTOR


@pytest.mark.parametrize(
    ("terms", "unit", "right"),
    [
        (0, 2.0**-24, 0.0),
        # few roundings: n u / (1 - n u)
        (1, 0.25, 1 / 3),
        (4, 2.0**-8, 4 / 252),
        # many: l sqrt(n) u
        (10000, 2.0**-24, 7.5266 * 100 * 2.0**-24),
        # n u is 1 and more: the sum of all roundings says nothing
        (256, 2.0**-8, 7.5266 * 16 * 2.0**-8),
    ],
)
def test_roundings_grow_as_the_smaller_of_both_bounds(
    terms: int, unit: float, right: float
) -> None:
    assert growth(terms, unit) == pytest.approx(right, rel=1e-4)


def test_unit_roundoffs() -> None:
    assert unit_roundoff(torch.float32) == 2.0**-24
    assert unit_roundoff(torch.bfloat16) == 2.0**-8
    assert unit_roundoff(torch.float16) == 2.0**-11
    assert unit_roundoff(torch.int32) == 0.0
    assert unit_roundoff(torch.complex64) == pytest.approx(2 * math.sqrt(2) * 2.0**-24)


def test_a_right_device_passes(found: dict[str, Any]) -> None:
    assert len(found["differences"]) > 80
    assert {*found["differences"]} == {""}


def test_torchs_exceptions_and_random_results_are_reported(found: dict[str, Any]) -> None:
    aside = found["aside"]
    assert "not compared: results are random" in aside["nn.functional.dropout"]
    assert "not compared: results are uninitialised" in aside["empty"]
    assert "excepted by torch: forward" in aside["bernoulli"]
    assert aside["linalg.solve"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported(found: dict[str, Any], fault: str) -> None:
    sentence = found["faults"][fault]
    for word in FAULTS[fault][1]:
        assert word in sentence
    assert "inf times" not in sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no expecttest", "torch's operator database needs expecttest: pip install expecttest"),
        ("no op_db", "has no op_db in torch.testing._internal.common_methods_invocations"),
        ("no get_decorators", "have no get_decorators: its database is another one"),
    ],
)
def test_a_torch_without_the_database_is_reported(
    found: dict[str, Any], change: str, words: str
) -> None:
    assert words in found["missing"][change]


def test_every_operator_runs_in_one_dtype_before_a_second(found: dict[str, Any]) -> None:
    for first, second in found["orders"].values():
        assert first["runs"] == second["runs"]
        assert first["runs"] == first["operators"]
        # float32, float16 and bfloat16 come before what is its own reference
        assert first["dtypes"] >= 3
        assert first["order"] != second["order"]


def test_samples_of_odd_sizes_are_of_their_own_kind(found: dict[str, Any]) -> None:
    sizes = found["sizes"]
    assert ["33", False] in sizes["exp"]
    assert ["7x11", False] in sizes["sum"]
    assert ["2x3x5x4", False] in sizes["exp"]
    assert {own for _, own in sizes["_segment_reduce"]} == {True}
    # channels last needs four dimensions next to weights, and channels are more than one
    assert ["1x6x3x4", False] in sizes["nn.functional.group_norm"]
    assert ["4x4x4x4x4", False] in sizes["nn.functional.conv3d"]
    assert found["enlarged"] == [[1, 5], True, "torch.float16"]


def test_nudges_and_wide_samples(found: dict[str, Any]) -> None:
    # by hand: 2 (1 + 1/4) = 2.5 and 4 (1 - 1/4) = 3
    assert found["nudged"] == [[2.5, 2.5], [3.0, 3.0], "torch.float64", [1, 2]]


class _Sample:
    """What is read of torch's SampleInput."""

    def __init__(self, first: Any, *args: Any, **kwargs: Any) -> None:
        self.input, self.args, self.kwargs = first, args, kwargs


def test_a_sample_is_shown_in_short() -> None:
    sample = _Sample(torch.zeros(3, 4), torch.zeros(()), [1, 2], dim=1, dtype=torch.float32)
    assert shown(sample) == "3x4, a number, [1, 2], dim=1, dtype=float32"
    assert len(shown(_Sample(list(range(1000)), **{"k" * 200: 1}))) < 110
