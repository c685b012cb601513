"""The products of a linear layer in fp8, forward and backward, with a scale for each tensor.

The hybrid recipe: weights and activations in e4m3, gradients in e5m2, whose range is larger
(Micikevicius et al., arXiv 2209.05433, section 3; ``Format.HYBRID`` of Transformer Engine;
``torchao.float8`` with a tensorwise scale). Scales are dynamic: each maps the largest element of
this very tensor to the largest number of the format. What lies between products is bf16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch
    from torch import nn

    from portagpu.devices.precision.model import Fp8

_SMALLEST: Final = 1e-12
"""Of the largest element of a tensor: one of zeros has a scale too."""
_EDGE: Final = 32


def use_fp8(model: nn.Module, pair: Fp8) -> None:
    """Have every ``nn.Linear`` of ``model`` multiply in the two formats of ``pair``.

    torch multiplies fp8 by multiples of 16 only, in tokens as in width.
    """
    import torch
    from torch import nn

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            kept = (*scaled(x, pair.e4m3), *scaled(weight, pair.e4m3))
            context.save_for_backward(*kept)
            left, one, right, other = kept
            return multiply(left, one, right.t(), other)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, one, weight, other = context.saved_tensors
            given, scale = scaled(gradient, pair.e5m2)
            of_x = multiply(given, scale, weight, other)
            return of_x, multiply(given.t(), scale, x, one).float()

    def forward(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, -2).bfloat16()
        product: torch.Tensor = Product.apply(rows, layer.weight)  # type: ignore[no-untyped-call]
        found = product.view(*x.shape[:-1], -1)
        return found if layer.bias is None else found + layer.bias.bfloat16()

    for each in model.modules():
        if isinstance(each, nn.Linear):
            each.forward = forward.__get__(each)  # type: ignore[method-assign]


def scaled(x: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` in ``kind``, and what to multiply it by, a float32 of shape ()."""
    import torch

    largest = x.detach().abs().amax().float().clamp(min=_SMALLEST)
    scale = largest / torch.finfo(kind).max
    return (x.detach().float() / scale).to(kind), scale


def multiply(
    left: torch.Tensor, one: torch.Tensor, right: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """The product in bf16 of two matrices in fp8 and their scales.

    Libraries take the left one row by row and the right one column by column (pytorch,
    aten/src/ATen/native/cuda/ScaledBlas.cpp): others are copied.
    """
    import torch

    by_column = right.t().contiguous().t()
    return torch._scaled_mm(left.contiguous(), by_column, one, other, out_dtype=torch.bfloat16)


def refusal(device: torch.device, pair: Fp8) -> str:
    """Why the three products of a training step do not run on ``device``; empty if they do."""
    import torch

    ones = torch.ones((_EDGE, _EDGE), device=device)
    products = {"forward": (pair.e4m3, pair.e4m3), "backward": (pair.e5m2, pair.e4m3)}
    for name, kinds in products.items():
        (left, one), (right, other) = (scaled(ones, each) for each in kinds)
        try:
            multiply(left, one, right, other)
        except (RuntimeError, ValueError, TypeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"torch refuses the products of fp8 {name} here: {first}"
    return ""
