"""The models of numbers against worked values and ml_dtypes, and programs on a right device."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import portagpu
from portagpu.suites.search.numbers import (
    casts,
    elementwise,
    gradients,
    moves,
    pointwise,
    products,
    reductions,
)
from portagpu.suites.search.numbers.area import (
    AREA,
    BYTES,
    CALLS,
    Choice,
    _choices,
    _moved,
    spread,
)
from portagpu.suites.search.numbers.formats import (
    ALL,
    COMPLEX,
    FP8,
    claimed,
    converted,
    overflow,
    pattern_values,
    promoted,
    rounded,
    whole_to_dtype,
)
from portagpu.suites.search.numbers.tensors import (
    CLASSES,
    Within,
    broadcast_index,
    is_right,
    listed,
    nature,
    numbers,
    place,
    positions,
    rows,
    strides_of,
    wrong_elements,
)
from tests.support.faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def gpu() -> Any:
    return portagpu.backend("cpu")


class _Rank:
    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu


@pytest.mark.parametrize(
    ("value", "dtype", "right"),
    [
        (1 + 2.0**-8, "bfloat16", 1.0),
        (1 + 3 * 2.0**-8, "bfloat16", 1 + 2.0**-6),
        (65519.0, "float16", 65504.0),
        (65520.0, "float16", math.inf),
        (-65520.0, "float16", -math.inf),
        (2.0**-25, "float16", 0.0),
        (3 * 2.0**-25, "float16", 2.0**-23),
        (2.0**24 + 1, "float32", 2.0**24),
        (2.0**24 + 3, "float32", 2.0**24 + 4),
        (2.0**-150, "float32", 0.0),
        (464.0, "float8_e4m3fn", 448.0),
        (61440.0, "float8_e5m2", math.inf),
        (Fraction(1, 3), "float64", 1 / 3),
        (Fraction(2**53 + 1), "float64", 2.0**53),
    ],
)
def test_rounding_is_to_the_nearest_even_number(value: Any, dtype: str, right: float) -> None:
    assert rounded(value, dtype) == right


def test_a_zero_keeps_its_sign_where_there_are_two() -> None:
    assert math.copysign(1, rounded(-0.0, "float16")) == -1
    assert math.copysign(1, rounded(-(2.0**-26), "float16")) == -1
    assert math.copysign(1, rounded(-0.0, "float8_e4m3fnuz")) == 1
    assert math.isnan(rounded(math.nan, "bfloat16"))


def test_what_is_too_large_becomes_what_the_format_has() -> None:
    assert overflow(-1.0, "bfloat16") == -math.inf
    assert math.isnan(overflow(1.0, "float8_e5m2fnuz"))
    assert converted(500.0, "float32", "float8_e4m3fn")[1] == 448.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FP8])
def test_numbers_of_all_patterns_are_those_of_ml_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    kind = numpy.float16 if dtype == "float16" else getattr(ml_dtypes, dtype)
    values = pattern_values(dtype)
    codes = numpy.arange(len(values), dtype=numpy.uint16 if len(values) > 256 else numpy.uint8)
    with numpy.errstate(all="ignore"):
        others = codes.view(kind).astype(numpy.float64).tolist()
    assert all(is_right(other, value) for other, value in zip(others, values, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FP8])
def test_rounding_is_that_of_ml_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy = pytest.importorskip("numpy")
    kind = numpy.float16 if dtype == "float16" else getattr(ml_dtypes, dtype)
    chance = random.Random(5)  # noqa: S311 - test data, no secret
    values = [
        struct.unpack("<f", struct.pack("<I", chance.getrandbits(32)))[0] for _ in range(3000)
    ]
    values += [each + off for each in (0.0, 1.0, 17.0, 448.0) for off in (2.0**-4, 3 * 2.0**-5)]
    with numpy.errstate(all="ignore"):
        others = numpy.array(values, numpy.float32).astype(kind).astype(numpy.float64).tolist()
    for value, other in zip(values, others, strict=True):
        assert is_right(other, rounded(value, dtype)), value


def test_rounding_of_fractions_and_floats_agrees() -> None:
    chance = random.Random(7)  # noqa: S311 - test data, no secret
    for _ in range(2000):
        value = math.ldexp(chance.uniform(-1, 1), chance.randint(-150, 130))
        for dtype in ("float32", "bfloat16", "float16"):
            assert rounded(Fraction(value), dtype) == rounded(value, dtype)


def test_casts_of_integers_wrap_and_of_floats_truncate() -> None:
    assert converted(300, "int64", "uint8") == 44
    assert converted(-129, "int16", "int8") == 127
    assert whole_to_dtype(2**63, "int64") == -(2**63)
    assert converted(-2.9, "float32", "int8") == -2
    assert converted(200.0, "float32", "int8") is None
    assert converted(math.nan, "float32", "bool") is True
    assert converted(3, "int8", "complex64") == 3 + 0j
    assert converted(1j, "complex64", "float32") is None


@pytest.mark.parametrize("source", casts.PATTERN_DTYPES)
def test_casts_of_whole_formats_are_those_of_the_model(source: str) -> None:
    values = casts.every_number(source)
    # the model takes a second for each 65,536 numbers
    chosen = range(0, len(values), 1 if len(values) == 256 else 127)
    for target in ALL:
        if target == source or target in COMPLEX:
            continue
        rights, has_answer = casts.expected(source, target)
        for index in chosen:
            right = converted(values[index], source, target)
            reported = bool(has_answer[index])
            assert reported == (right is not None), (source, target, values[index])
            found = [each[index].item() for each in rights]
            wanted = right if isinstance(right, tuple) else (right,)
            if reported:
                shown = (source, target, values[index], found, right)
                assert all(is_right(each, right) for each in found), shown
                assert all(any(is_right(each, one) for each in found) for one in wanted), shown


def test_every_pattern_is_the_number_that_torch_reads() -> None:
    for source in casts.PATTERN_DTYPES:
        found = listed(casts.every_pattern(source))
        values = casts.every_number(source)
        assert len(set(map(str, found))) >= len(found) - 2047, "patterns come twice"
        assert wrong_elements(found, values, source) == ""


@pytest.mark.parametrize(
    ("source", "target", "number", "wrong", "reported"),
    [
        ("bfloat16", "float8_e4m3fnuz", 1.0625, 1.125, "gave 1.125 for 1.0625, not 1.0"),
        ("float16", "int8", -2.5, -3, "gave -3 for -2.5, not -2"),
        ("float16", "float32", -0.0, 0.0, "gave 0.0 for -0.0, not -0.0: the sign of zero was lost"),
        ("float16", "float32", math.nan, 0.0, "gave 0.0 for nan, not nan: the NaN was lost"),
        ("int16", "uint8", -1, 0, "gave 0 for -1, not 255"),
        ("int16", "bool", 256, False, "gave False for 256, not True"),
        ("int8", "complex64", -5, 5, "gave (5+0j) for -5, not (-5+0j)"),
        ("float8_e5m2", "float16", 2.0**-16, 0.0, "the denormal became 0"),
    ],
)
def test_one_wrong_pattern_of_a_format_is_reported(
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    number: float,
    wrong: float,
    reported: str,
) -> None:
    values = [str(float(each)) for each in casts.every_number(source)]
    index = values.index(str(float(number)))
    good = torch.Tensor.to

    def faulty(tensor: Any, *given: Any, **named: Any) -> Any:
        found = good(tensor, *given, **named)
        if given == (getattr(torch, target),) and len(tensor) == len(values):
            found[index] = wrong
        return found

    monkeypatch.setattr(torch.Tensor, "to", faulty)
    (found,) = casts.differences(gpu, source)
    assert found.startswith(f"{source} to {target} gave"), found
    assert reported in found


def test_nothing_is_claimed_where_a_cast_by_way_of_float32_is_another_number() -> None:
    # one bit above a tie of float16, which float32 does not have
    assert converted(1 + 2.0**-11 + 2.0**-40, "float64", "float16") is None
    assert converted(1 + 2.0**-11 + 2.0**-20, "float64", "float16") == 1 + 2.0**-10


def test_promotion_is_that_of_torch() -> None:
    names = ("bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64")
    for one in (*names, "complex64", "complex128"):
        for other in (*names, "complex64", "complex128"):
            if {one, other} & {"complex64", "complex128"} and {one, other} & {"float16"}:
                continue
            right = torch.promote_types(getattr(torch, one), getattr(torch, other))
            assert f"torch.{promoted(one, other)}" == str(right), (one, other)


def test_layouts_place_elements_as_torch_reads_them(gpu: Any) -> None:
    for layout in ("plain", "every second", "transposed", "rows apart", "expanded", "overlapping"):
        placed = place(gpu, "int16", (3, 4), layout, "distinct", 1)
        assert placed.tensor.flatten().tolist() == placed.values
        assert placed.changed() == ""
    strides, offset, length = strides_of((2, 3), "every second")
    assert (strides, offset, length) == ((6, 2), 0, 13)
    assert positions((2, 3), strides, offset) == (0, 2, 4, 6, 8, 10)


def test_a_number_written_next_to_the_elements_is_reported(gpu: Any) -> None:
    placed = place(gpu, "float32", (3,), "every second", "integers", 1)
    placed.whole[1] = 99
    assert "a number between them became 99" in placed.changed(written=True)
    placed.tensor[2] = 98
    assert "element" not in placed.changed(written=True)


def test_rows_and_broadcasts_are_counted_by_hand() -> None:
    assert rows((2, 3), (1,)) == ((0, 1, 2), (3, 4, 5))
    assert rows((2, 3), (0,)) == ((0, 3), (1, 4), (2, 5))
    assert broadcast_index((2, 1), (2, 3)) == (0, 0, 0, 1, 1, 1)
    assert broadcast_index((), (2,)) == (0, 0)


def test_operations_are_spread_and_each_of_them_differs() -> None:
    lists = {"a": range(5), "b": range(7)}
    one, two = Choice("one", {}, lists, times=3), Choice("two", {}, lists)
    every = spread([one, two])
    assert [each.name for each in every] == ["one", "one", "two", "one"]
    assert every[0].call(bytes(BYTES)) == ("one", {"a": 0, "b": 0}) == every[3].call(bytes(BYTES))
    assert every[0].call(bytes(range(BYTES))) == ("one", {"a": 0, "b": 1})
    assert every[1].call(bytes(range(BYTES))) == ("one", {"a": 1, "b": 2})


def test_values_are_of_their_dtype_and_come_again() -> None:
    for dtype in ("float16", "int8", "bfloat16", "complex64"):
        for kind in CLASSES:
            found = numbers(dtype, kind, 9, 3)
            assert found == numbers(dtype, kind, 9, 3) or any(v != v for v in found)
    assert set(numbers("float32", "ones", 5, 0)) == {1.0}


def test_sums_have_their_bound() -> None:
    assert reductions.gamma(2, 0.25) == 1.0
    assert reductions.sum_of([1.0] * 1031, "bfloat16") == 1032.0
    assert reductions.sum_of([1.0, math.inf, -math.inf], "float32") != 0
    exact = reductions.sum_of([0.1, 0.2], "float64")
    assert isinstance(exact, Within)
    assert abs(exact.value - 0.3) <= exact.bound < 1e-15
    assert reductions.sum_of([127, 127], "int8") == -2


def test_products_are_exact_where_whole_and_bounded_else() -> None:
    assert products.finished_product([2.0, 3.0], [4.0, -1.0], "float16") == 5.0
    near = products.finished_product([0.1], [0.1], "float32")
    assert isinstance(near, Within)
    assert near.bound < 1e-8


def test_a_product_with_an_infinity_is_certain_only_where_twice_an_operand_is_finite():
    plain = products._product([math.inf, 3.0], [2.0, 0.0], "float32", False)
    assert plain == (math.inf, 0.0, 0, 0.0)
    # a library may multiply the operand by alpha first, and infinity times 0 is not a number
    largest = float(torch.finfo(torch.float32).max)
    assert products._product([math.inf, largest], [2.0, 0.0], "float32", False) is None


def test_nothing_is_claimed_of_a_sum_whose_product_is_not_a_number() -> None:
    right = pointwise.OPS["addcmul"].right
    # by hand: -1.85 * 3.4e38 is beyond float32, and the sum of both is not; a float64 has both
    assert right(3.4e38, 1.85, -3.4e38, "float32") is None
    assert right(3.4e38, 1.85, -3.4e38, "float64").value == pytest.approx(-2.89e38, rel=1e-3)
    # 65519 rounds to the largest float16, 65520 to infinity
    assert right(-65504.0, 65519.0, 1.0, "float16") is not None
    assert right(-65504.0, 65520.0, 1.0, "float16") is None


@pytest.mark.parametrize(
    ("got", "right", "dtype", "reported"),
    [
        (0.0, 2.0**-140, "float32", "the denormal became 0"),
        (1.0, math.nan, "float32", "the NaN was lost"),
        (0.0, -0.0, "float32", "the sign of zero was lost"),
        (3.0, -3.0, "float32", "it is the negative"),
        (65504.0, math.inf, "float16", "it was saturated"),
        (1 - 1j, 1 + 1j, "complex64", "the imaginary part has the other sign"),
        (1.0, 1 + 2.0**-7, "bfloat16", "rounded to the wrong side"),
    ],
)
def test_a_difference_has_a_nature(got: Any, right: Any, dtype: str, reported: str) -> None:
    assert reported in nature(got, right, dtype)


def test_every_operation_is_right_on_a_right_device(gpu: Any) -> None:
    chance = random.Random(11)  # noqa: S311 - test data, no secret
    rank: Any = _Rank(gpu)
    choices = _choices(claimed(gpu))
    assert len({each.fixed.get("op") for each in choices}) > 110
    for choice in choices:
        for _ in range(6):
            call = choice.call(chance.randbytes(BYTES))
            assert AREA.difference(rank, [call]) == "", call


def test_a_program_stops_at_the_first_difference(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "move", lambda gpu, **given: "the fault")
    move = ("move", {})
    rank: Any = _Rank(gpu)
    assert AREA.difference(rank, [move]) == "the fault"


PLAIN: dict[str, Any] = {"shape": [7], "layout": "plain", "seed": 1}
SAMPLES: dict[str, tuple[Callable[..., str], dict[str, Any], str]] = {
    "add: everywhere: the last element is wrong": (
        elementwise.elementwise_difference,
        {
            "op": "add",
            "dtype": "float32",
            "other": "float32",
            "kind": "integers",
            "beside": "equal",
            "form": "function",
        },
        "the last",
    ),
    "neg: everywhere: the first operand is written": (
        elementwise.elementwise_difference,
        {
            "op": "neg",
            "dtype": "int32",
            "other": "int32",
            "kind": "distinct",
            "beside": "equal",
            "form": "function",
        },
        "wrote operand 1",
    ),
    "sum: everywhere: the sign is wrong": (
        reductions.reduction_difference,
        {"op": "sum", "dtype": "float32", "kind": "ones", "dims": [0], "form": "function"},
        "it is the negative",
    ),
    "cast to bfloat16: of everything: rounds toward zero": (
        casts.cast_difference,
        {"source": "float32", "target": "bfloat16", "kind": "ordinary", "form": "to"},
        "rounded to the wrong side",
    ),
    "mul: backward, everywhere: the gradient is doubled": (
        gradients.gradient_difference,
        {"op": "mul", "dtype": "float32", "form": "backward", "shape": [3, 5]},
        "it was added twice",
    ),
    "flip: everywhere: the elements are in another order": (
        moves.indexing_difference,
        {"op": "flip", "dtype": "int8", "kind": "distinct", "dim": 1, "shape": [3, 5]},
        "flip of int8",
    ),
    "attention: everywhere: is not causal": (
        products.attention_difference,
        {
            "dtype": "float32",
            "mask": "causal",
            "queries": 4,
            "keys": 5,
            "width": 4,
            "scale": None,
            "heads": 1,
        },
        "mask causal",
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_fault_is_reported_by_its_nature(gpu: Any, name: str) -> None:
    difference, given, reported = SAMPLES[name]
    fault = next(each for each in faults_of("numbers") if each.name == name)
    plain = {key: value for key, value in PLAIN.items() if key != "shape" or "queries" not in given}
    call = {**plain, **given}
    assert difference(gpu, **call) == ""
    with fault.apply():
        assert reported in difference(gpu, **call)
    assert difference(gpu, **call) == ""


def test_the_catalogue_is_large_and_has_one_name_each() -> None:
    names = [each.name for each in faults_of("numbers")]
    assert len(names) == len(set(names)) >= 200


def test_operations_that_move_elements_are_reported_in_every_dtype_that_they_can_be() -> None:
    """Truth values have no sum of whole numbers, and complex numbers no order."""
    have = ["bool", "int32", "bfloat16", "complex64"]
    barred = {"scatter_add": "bool", "index_add": "bool", "sort": "complex64", "topk": "complex64"}
    reported = {op: _moved(op, have) for op in moves.OPS}
    assert reported == {op: [each for each in have if each != barred.get(op)] for op in moves.OPS}
