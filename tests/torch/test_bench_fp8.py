"""Linear layers in fp8: which formats are multiplied, and that values are those of the layer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from portagpu.devices.precision import Fp8
from portagpu.suites.performance import matmul

pytestmark = pytest.mark.torch

PAIR = Fp8(torch.float8_e4m3fn, torch.float8_e5m2)
TOKENS, INPUTS, OUTPUTS = 32, 64, 48


class Products:
    """torch's scaled product by its definition in float64, which remembers its operands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: list[tuple[str, str]] = []
        self.strides: list[tuple[int, int]] = []
        monkeypatch.setattr(torch, "_scaled_mm", self)

    def __call__(self, left, right, one, other, *, out_dtype):
        self.kinds.append((str(left.dtype)[6:], str(right.dtype)[6:]))
        self.strides.append((left.stride(1), right.stride(0)))
        exact = (left.double() * one.double()) @ (right.double() * other.double())
        return exact.to(out_dtype)


def layer_and_gradients(model, x, given):
    x = x.clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(x)
    found.float().backward(given)
    return found, x.grad, model.weight.grad, model.bias.grad


def test_gradients_are_multiplied_in_e5m2_and_all_else_in_e4m3(monkeypatch) -> None:
    products = Products(monkeypatch)
    torch.manual_seed(7)
    model = torch.nn.Linear(INPUTS, OUTPUTS)
    x, given = torch.randn(4, 8, INPUTS), torch.randn(4, 8, OUTPUTS)
    right = layer_and_gradients(model, x, given)
    assert products.kinds == []
    matmul.use_fp8(model, PAIR)
    found = layer_and_gradients(model, x, given)
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    assert products.kinds == [(e4m3, e4m3), (e5m2, e4m3), (e5m2, e4m3)]
    # the left one lies row by row, the right one column by column, as libraries want them
    assert products.strides == [(1, 1)] * 3
    # two operands of 4 bits: at most 2^-4 each; a gradient of 3 bits: at most 2^-3
    limits = (2 * 2**-4, 2**-3 + 2**-4, 2**-3 + 2**-4, 2**-7)
    for one, other, limit in zip(found, right, limits, strict=True):
        assert one.shape == other.shape
        one, other = one.detach().double(), other.detach().double()
        error = (one - other).norm() / other.norm()
        assert float(error) < limit
    assert found[2].dtype == torch.float32


def test_a_tensor_is_scaled_to_the_largest_number() -> None:
    x = torch.tensor([[0.5, -3.0], [1.0, 0.25]])
    for kind, largest in ((torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)):
        kept, scale = matmul.scaled(x, kind)
        assert float(kept.float().abs().max()) == largest
        assert float(scale) == pytest.approx(3.0 / largest)
        assert (kept.float() * scale).tolist()[0][1] == pytest.approx(-3.0)
    zeros, scale = matmul.scaled(torch.zeros(2, 2), torch.float8_e5m2)
    assert zeros.float().abs().sum() == 0
    assert float(scale) > 0


def test_a_refusal_is_one_line_that_says_which_product(monkeypatch) -> None:
    products = Products(monkeypatch)
    assert matmul.refusal(torch.device("cpu"), PAIR) == ""
    assert len(products.kinds) == 2

    def refuse(left, *others, **options):
        if left.dtype == torch.float8_e5m2:
            raise RuntimeError("not on this device\nand a stack")
        return products(left, *others, **options)

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    said = matmul.refusal(torch.device("cpu"), PAIR)
    assert said == "torch refuses the products of fp8 backward here: not on this device"
