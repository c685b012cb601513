"""Saturating casts: against torch's own where it does the same, and where torch does another thing.

What a device has to do is in matrix/conformance; here is what the suite does not ask.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from portagpu.devices.precision import cast
from portagpu.devices.precision.casts import _torch_saturates

pytestmark = pytest.mark.torch

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@pytest.mark.parametrize("dtype", [*FP8, torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_inside_the_range_a_cast_is_torch_s(dtype, source) -> None:
    generator = torch.Generator().manual_seed(1)
    largest = min(torch.finfo(dtype).max, 6e4)
    x = (torch.rand(4096, generator=generator, dtype=torch.float64) - 0.5).to(source) * largest
    x = torch.cat([x, x * 2.0**-14])
    assert torch.equal(cast(x, dtype).double(), x.to(dtype).double())


@pytest.mark.parametrize("dtype", FP8)
def test_it_saturates_whether_or_not_torch_does(monkeypatch, dtype) -> None:
    monkeypatch.setattr("portagpu.devices.precision.casts._torch_saturates", lambda *_: False)
    largest = torch.finfo(dtype).max
    found = cast(torch.tensor([1e30, -math.inf, largest * 1.04]), dtype).double().tolist()
    assert found == [largest, -largest, largest], "without torch's own saturation"


def test_the_shortcut_is_what_torch_was_seen_to_do() -> None:
    for dtype in FP8:
        cast_by_torch = torch.tensor([1e30, -math.inf]).to(dtype).double().tolist()
        largest = torch.finfo(dtype).max
        expected = cast_by_torch == [largest, -largest]
        assert _torch_saturates(torch.float32, dtype, "cpu") is expected, (
            f"torch casts to {dtype} otherwise"
        )


def test_a_fake_tensor_takes_no_shortcut() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(8, device="cuda")
        assert cast(fake, torch.float8_e4m3fn).dtype is torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float16])
def test_a_cast_is_mapped_over_a_batch(dtype) -> None:
    x = torch.tensor([[1e9, 2.0], [3.0, -1e9]])
    found = torch.vmap(lambda row: cast(row, dtype))(x)
    assert torch.equal(found.float(), cast(x, dtype).float())


def test_a_cast_of_no_data_has_a_shape() -> None:
    found = cast(torch.empty(3, 2, device="meta"), torch.float8_e4m3fnuz)
    assert (found.shape, found.dtype) == ((3, 2), torch.float8_e4m3fnuz)


def test_the_name_of_a_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a torch\.dtype, not 'float8_e4m3fn'"):
        cast(torch.ones(2), "float8_e4m3fn")


@pytest.mark.parametrize("keep", [False, True])
def test_bfloat16_saturates_to_the_largest_float16_which_it_has_not(keep) -> None:
    x = torch.tensor([65536.0, -1e30, 65280.0, math.inf], dtype=torch.bfloat16)
    found = cast(x, torch.float16, infinity="keep" if keep else "saturate").tolist()
    assert found == [65504.0, -65504.0, 65280.0, math.inf if keep else 65504.0]


def test_a_cast_leaves_its_input_alone() -> None:
    x = torch.tensor([math.inf, 1.0])
    assert cast(x, torch.float32).tolist() == [torch.finfo(torch.float32).max, 1.0]
    assert x.tolist() == [math.inf, 1.0], "the input was changed"


def test_gradients_pass_inside_the_range() -> None:
    x = torch.tensor([0.5, 1e6, -3.0], requires_grad=True)
    cast(x, torch.float16).float().sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", FP8)
def test_one_fp8_format_is_cast_to_another(dtype) -> None:
    x = torch.tensor([57344.0, -2.0, 0.25]).to(torch.float8_e5m2)
    largest = torch.finfo(dtype).max
    assert cast(x, dtype).double().tolist() == [largest, -2.0, 0.25]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2, torch.int8])
def test_parts_are_as_the_whole(monkeypatch, dtype) -> None:
    monkeypatch.setattr("portagpu.devices.precision.casts._PART", 5)
    x = torch.linspace(-1e3, 1e3, 4002).reshape(3, -1, 1)
    largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    whole = x.clamp(-largest - (dtype is torch.int8), largest)
    expected = (whole.round() if dtype is torch.int8 else whole).to(dtype)
    assert torch.equal(cast(x, dtype, nan="zero").float(), expected.float())


def test_empty_and_strided_tensors() -> None:
    assert cast(torch.empty(0, 3), torch.float8_e4m3fnuz).shape == (0, 3)
    x = torch.arange(24.0).reshape(4, 6).t()[::2] * 100
    assert torch.equal(cast(x, torch.float8_e4m3fnuz).float(), cast(x.clone(), FP8[2]).float())


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e8m0fnu])
def test_other_dtypes_are_refused(dtype) -> None:
    with pytest.raises(TypeError, match="cast makes"):
        cast(torch.ones(2), dtype)
    with pytest.raises(TypeError, match="cast takes"):
        cast(torch.ones(2).to(dtype), torch.float16)


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="wrap"):
        cast(torch.ones(2), torch.float16, infinity="wrap")


def test_int8_has_no_nan_for_an_infinity() -> None:
    with pytest.raises(ValueError, match="int8 has no NaN for an infinity"):
        cast(torch.ones(2), torch.int8, infinity="nan", nan="zero")
