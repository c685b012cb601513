"""A result that is off is reported with its element, what is right, and what it looks like."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from types import SimpleNamespace
from typing import Any

from portagpu.suites.conformance.cases import NotClaimed
from portagpu.suites.conformance.closeness import (
    arithmetic_of,
    bits_kept,
    check_near,
    claimed_support,
    float64_values,
    require_contract,
    tensor_on,
)

EXACT = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
BOUND = 2.0**-20 * EXACT


def test_what_is_within_its_bound_passes() -> None:
    check_near(EXACT + 0.9 * BOUND, EXACT, BOUND, "a sum")
    nan = torch.tensor([float("nan"), float("inf")])
    check_near(nan, nan, torch.zeros(2), "a sum")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (EXACT * 0, r"a sum: element \(0, 0\) is 0 instead of 1 within .*each wrong element is 0"),
        (-EXACT, "4 of 4 are wrong, and the signs are wrong"),
        (EXACT * 0 + 9, "all elements are equal"),
        (EXACT * float("nan"), "is nan instead of 1 within 9.54e-07; .* each wrong element is nan"),
        (EXACT + 2.0**-9 * 4, r"it keeps about 9 bits of the largest value \(bfloat16\)"),
        (EXACT + 2.0**-12 * 4, r"it keeps about 12 bits of the largest value \(TF32 or float16\)"),
        (EXACT[0], r"a sum: the shape is \(2,\), not \(2, 2\)"),
    ],
)
def test_what_is_off_is_named(found: torch.Tensor, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_near(found, EXACT, BOUND, "a sum")


def test_a_bound_of_nothing_is_not_a_ratio() -> None:
    with pytest.raises(AssertionError, match="element 1 is 3 instead of 2, which it has to equal"):
        check_near([1.0, 3.0], [1.0, 2.0], [0.0, 0.0], "a copy")


def test_the_worst_element_is_reported() -> None:
    found = EXACT + torch.tensor([[0, 3.0], [0, 2.0]], dtype=torch.float64) * BOUND
    with pytest.raises(AssertionError, match=r"element \(0, 1\) .* 3 times the bound; 2 of 4"):
        check_near(found, EXACT, BOUND, "a sum")


def test_bits_that_two_numbers_share() -> None:
    assert bits_kept(1.0, 1.0) == 53
    assert bits_kept(1 + 2.0**-11, 1.0) == 11
    assert bits_kept(0.5, 0.0) == bits_kept(float("inf"), 1.0) == bits_kept(-1.0, 1.0) == 0
    assert arithmetic_of(11) == " (TF32 or float16)"
    assert arithmetic_of(3) == ""


@pytest.fixture
def claims() -> Any:
    """A backend of contract 1.3 that has tensors in all dtypes but float8_e5m2."""
    support = {torch.float8_e5m2: "none", torch.float16: "storage"}
    return SimpleNamespace(
        name="small",
        device=torch.device("cpu"),
        plugin=SimpleNamespace(contract=(1, 3)),
        precision=SimpleNamespace(support=lambda dtype: support.get(dtype, "native")),
    )


def test_what_a_backend_does_not_claim_is_not_judged(claims: Any) -> None:
    assert [claimed_support(claims, name) for name in ("float16", "int8")] == ["storage", "native"]
    assert tensor_on(claims, [1, 2.0**-15], "float16").dtype is torch.float16
    # 2**-8 beyond 1 has no place in bfloat16, and rounds to even
    assert float64_values(tensor_on(claims, [1 + 2.0**-8, -3], "bfloat16")) == [1.0, -3.0]
    with pytest.raises(NotClaimed, match=r"^small claims no tensors of float8_e5m2$"):
        tensor_on(claims, [1.0], "float8_e5m2")
    require_contract(claims, 3)
    with pytest.raises(NotClaimed, match=r"^the small backend is older than contract 1\.4$"):
        require_contract(claims, 4)
