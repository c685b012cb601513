"""The matrix products of the performance suite, and the bound that separates wrong from rounded."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from portagpu.devices.precision import Arithmetic, Float32Switch, Fp8, Precision
from portagpu.facts.targets.model import CONTIGUOUS
from portagpu.suites.performance import matmul

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    with Float32Switch(Precision({}), "ieee"):
        yield


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> str:
    """A dtype of ``DTYPES``; fp8 is torch's own, since that of oneDNN depends on the CPU."""
    if request.param == "fp8":
        request.getfixturevalue("without_onednn")
    return str(request.param)


def gpu() -> Any:
    """A device with fp8 arithmetic, as far as products need one: torch's own on the CPU."""
    fp8 = Fp8(torch.float8_e4m3fn, torch.float8_e5m2)
    precision = SimpleNamespace(fp8=fp8, tf32=Arithmetic.IEEE, saturates=frozenset())
    return SimpleNamespace(
        name="some",
        device=torch.device("cpu"),
        precision=precision,
        set_float32_precision=partial(Float32Switch, precision),
    )


DTYPES = ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]


@pytest.mark.parametrize("dtype", DTYPES, indirect=True)
def test_a_right_product_is_within_the_bound(dtype: str) -> None:
    work = matmul.product(gpu(), dtype, 64, 96, 128, seed=1)
    matmul.poison(work)
    matmul.multiply(work)
    assert matmul.verify(work, seed=2) is None


@pytest.mark.parametrize("dtype", DTYPES, indirect=True)
@pytest.mark.parametrize("place", [(0, 17), (63, 40), (30, 0), (5, 95)])
def test_one_element_that_is_off_is_found_where_it_is_sampled(
    dtype: str, place: tuple[int, int]
) -> None:
    work = matmul.product(gpu(), dtype, 64, 96, 128, seed=1)
    matmul.multiply(work)
    # entries are of the size of sqrt(128) = 11, those of int8 of 5e4
    work.result[place] += 10 if dtype != "int8" else 1
    wrong = matmul.verify(work, seed=2)
    assert wrong is not None, f"{dtype} {place} was off by 10 and passed"
    assert "is wrong in" in wrong.sentence
    assert "instead of" in wrong.sentence


def test_a_product_of_rounded_operands_is_not_a_product_in_fp32() -> None:
    work = matmul.product(gpu(), "fp32", 64, 64, 512, seed=1)
    work.result = (work.a.bfloat16().float() @ work.b.bfloat16().float()).contiguous()
    assert matmul.verify(work, seed=2) is not None, "bf16 operands passed for fp32"


def test_tf32_may_round_its_operands_and_fp32_may_not() -> None:
    def rounded(x: Any) -> Any:
        # to 10 bits of the fraction, by cutting
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    for dtype, passes in (("tf32", True), ("fp32", False)):
        work = matmul.product(gpu(), dtype, 64, 64, 512, seed=1)
        work.result = rounded(work.a) @ rounded(work.b)
        assert (matmul.verify(work, seed=2) is None) is passes


def test_a_product_that_was_not_written_is_found() -> None:
    for dtype in DTYPES:
        work = matmul.product(gpu(), dtype, 32, 32, 32, seed=1)
        matmul.poison(work)
        assert matmul.verify(work, seed=2), f"a poisoned {dtype} result passed"


def test_operations_are_two_m_n_k() -> None:
    assert matmul.product(gpu(), "fp32", 3, 5, 7, seed=1).operations == 2 * 3 * 5 * 7


def test_operands_are_random_and_the_same_for_a_seed() -> None:
    first, again, other = (matmul.product(gpu(), "fp32", 32, 32, 32, seed) for seed in (1, 1, 2))
    assert torch.equal(first.a, again.a)
    assert not torch.equal(first.a, other.a)
    assert first.a.unique().numel() > 900, "constant data flatters"


def test_a_device_without_fp8_arithmetic_has_no_fp8_product() -> None:
    without = gpu()
    without.precision.fp8 = None
    with pytest.raises(ValueError, match="no fp8"):
        matmul.product(without, "fp8", 16, 16, 16, seed=1)


@pytest.mark.parametrize("contiguous", CONTIGUOUS)
def test_operands_lie_in_memory_as_asked_and_give_the_same_product(contiguous: str) -> None:
    work = matmul.product(gpu(), "fp32", 32, 48, 64, seed=1, contiguous=contiguous)
    assert (work.a.shape, work.b.shape) == ((32, 64), (64, 48))
    along = [work.a.stride().index(1), work.b.stride().index(1)]
    assert along == ["mk".index(contiguous[0]), "kn".index(contiguous[1])]
    matmul.multiply(work)
    assert matmul.verify(work, seed=2) is None
