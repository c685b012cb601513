"""The matrix products of the performance suite, and the bound that separates wrong from rounded."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import portagpu as pg
from portagpu.devices.precision import Arithmetic, Float32Switch, Fp8, Precision
from portagpu.facts.targets.model import CONTIGUOUS
from portagpu.suites.performance import matmul
from portagpu.suites.performance.cases import load_area
from portagpu.train.exact.products import Rounded, Summed
from tests.support.faulty_device import Fault, installed, published, region, stuck, words_of

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
        mem_get_info=lambda: (1 << 40, 1 << 40),
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


SHAPES = [((64, 96, 128), 1), ((16, 48, 4096), 2), ((160, 32, 16), 3)]
"""Of products, with the seed of their operands."""


@pytest.mark.parametrize("dtype", DTYPES, indirect=True)
@pytest.mark.parametrize(("shape", "seed"), SHAPES)
def test_every_element_of_an_exact_product_is_judged(
    dtype: str, shape: tuple[int, int, int], seed: int
) -> None:
    work = matmul.judged_product(gpu(), dtype, *shape, seed)
    assert work.sampled == ""
    matmul.poison(work)
    assert matmul.verify(work, seed=2)
    matmul.multiply(work)
    assert matmul.verify(work, seed=2) is None
    generator = random.Random(f"{dtype} {shape}")  # noqa: S311 - places that can be drawn again
    for _ in range(5):
        row, column = generator.randrange(work.m), generator.randrange(work.n)
        right = work.result[row, column].clone()
        words_of(work.result)[row * work.n + column] ^= 1
        wrong = matmul.verify(work, seed=2)
        work.result[row, column] = right
        assert wrong is not None, f"the lowest bit of {row}, {column} was wrong and passed"
        where = f"row {row}, column {column}"
        assert wrong.sentence.startswith(f"the {dtype} product is wrong in {where}: ")
        assert wrong.digest


@pytest.mark.parametrize("dtype", DTYPES, indirect=True)
def test_exact_operands_are_full_and_lie_where_random_ones_do(dtype: str) -> None:
    made = [make(gpu(), dtype, 64, 96, 128, 1) for make in (matmul.product, matmul.judged_product)]
    shapes = [[(each.shape, each.stride(), each.dtype) for each in (w.a, w.b)] for w in made]
    assert shapes[0] == shapes[1]
    assert made[0].result.dtype == made[1].result.dtype
    share = float((made[1].a == 0).float().mean())
    assert share < 0.3, "zeros take no power"


def test_what_no_integers_keep_exact_is_sampled_and_says_why(without_onednn: None) -> None:
    work = matmul.judged_product(gpu(), "fp8", 16, 16, 1 << 15, seed=1)
    assert "a product in float8_e4m3fn would not be exact" in work.sampled
    assert matmul.judged_in_words(work).startswith("sampled rows and columns, because a product")
    matmul.multiply(work)
    assert matmul.verify(work, seed=2) is None


def measured(dtype: str, m: int, n: int, k: int) -> dict[str, Any]:
    """What the measure gives on the CPU, in this process."""
    rank = SimpleNamespace(gpu=pg.backend("cpu"), step=lambda name: None)
    arguments = {"effort": "quick", "dtype": dtype, "m": m, "n": n, "k": k}
    found: dict[str, Any] = load_area("gemm").gemm(
        rank, **arguments, contiguous=matmul.usual_layout(dtype)
    )
    return found


FAULTS = {
    "a stuck bit": stuck(3),
    "a tile": region(slice(16, 32), slice(32, 48)),
    "one element": region(slice(7, 8), slice(9, 10)),
}


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_device_has_no_time(dtype: str, name: str) -> None:
    # in the lowest bits, far from the rows and columns that are sampled
    with installed(Fault(name, "matrix", FAULTS[name])) as state:
        found = measured(dtype, 64, 48, 32)
    assert state.corrupted, "it did nothing wrong"
    assert "product is wrong in row" in found["wrong"]
    assert found["digest"]
    assert found["points"] == []


def test_one_wrong_element_of_a_million_is_found() -> None:
    with installed(Fault("1e-6 of the elements", "matrix", published(1e-6))) as state:
        found = measured("fp32", 1024, 1024, 16)
    assert state.corrupted
    assert "; 1 of 1048576 elements are" in found["wrong"]


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "bf16", "fp16", "int8"])
def test_a_sound_device_has_a_time(dtype: str) -> None:
    found = measured(dtype, 64, 48, 32)
    assert (found["wrong"], len(found["points"])) == ("", 1)
    assert found["notes"]["judged"].startswith("every element")


@pytest.mark.parametrize(
    ("dtype", "bits"), [("fp64", 40), ("fp32", 13), ("fp16", 11), ("tf32", 11)]
)
def test_seeds_take_turns_in_which_operand_has_most_bits(dtype: str, bits: int) -> None:
    for seed, wide in ((3, ""), (4, "a"), (5, "b")):
        work = matmul.judged_product(gpu(), dtype, 16, 16, 512, seed)
        assert work.sampled == ""
        matmul.multiply(work)
        assert matmul.verify(work, seed=2) is None
        assert isinstance(work.exact, Summed | Rounded)
        of = work.exact.of if isinstance(work.exact, Summed) else work.exact.reference.of
        found = {name: int(getattr(of, name).abs().max()).bit_length() for name in ("a", "b")}
        assert [name for name in found if found[name] >= bits] == [*wide]


def test_float32_in_the_bits_of_bfloat16_is_wrong_for_wide_operands() -> None:
    work = matmul.judged_product(gpu(), "fp32", 64, 64, 4096, seed=4)
    work.result = work.a.bfloat16().float() @ work.b.bfloat16().float()
    assert matmul.verify(work, seed=2) is not None
