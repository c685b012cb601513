"""What cannot be exact: the same bits each time, and the first result within a derived bound.

A library may round functions as exp differently, so there is no digest that every vendor has to
give. Devices of one model with one version of torch give the same digest, and can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.judge import Wrong, bit_patterns, differences
from portagpu.train.exact.probe import Probe
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

_ROWS: Final = 64
_COLUMNS: Final = 512
_UNIT: Final = 2.0**-24
"""The unit roundoff of float32."""
_FUNCTION_ULPS: Final = 4
"""Of a function of one argument: CUDA's are within 2 (CUDA C++ programming guide, appendix on
mathematical functions), and so are HIP's and SLEEF's; twice that."""


@dataclass(slots=True)
class Repeated:
    """Work that has to give the same bits each time.

    :param compute: Gives a float32 result of the same shape each time.
    :param reference: The result in float64, on the host.
    :param bound: The largest error that rounding explains; shape of the result, on the host.
    """

    compute: Callable[[], torch.Tensor]
    reference: torch.Tensor
    bound: torch.Tensor
    inputs: int
    _first: torch.Tensor | None = field(default=None, init=False)

    @property
    def results(self) -> int:
        """The number of elements of the result."""
        return self.reference.numel()

    def run(self) -> torch.Tensor:
        """Compute once."""
        return self.compute()

    def judge(self, result: torch.Tensor) -> Wrong | None:
        """Of the first result what is outside the bound, of a later one what differs from it."""
        import torch

        if self._first is not None:
            return differences(result, self._first)
        host = result.cpu()
        # a comparison with NaN is false
        right = (host.double() - self.reference).abs() <= self.bound
        if bool(right.all()):
            self._first = result.clone()
            return None
        places = (~right).flatten().nonzero().flatten()
        expected = bit_patterns(self.reference.to(torch.float32)).flatten()[places]
        return Wrong(
            int(places.numel()),
            tuple(result.shape),
            places,
            bit_patterns(host).flatten()[places],
            expected,
            "float32",
        )


def _uniform(draws: Draws, name: str, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
    """float32 in steps of 2**-10, from ``low`` to ``high``."""
    import torch

    return draws.integers(name, shape, low << 10, high << 10).to(torch.float32) / 1024


def _function(name: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    function = getattr(torch, name)
    low, high = _RANGES[name]
    x = _uniform(draws, "x", (_ROWS * scale, _COLUMNS), low, high)
    if low == 0:
        x = x + 1 / 1024
    reference = function(x.cpu().double())
    # near zeros of a function the error is that of its argument
    bound = _FUNCTION_ULPS * 2 * _UNIT * reference.abs().clamp(min=2.0**-14)
    return Repeated(lambda: function(x), reference, bound, x.numel())


_RANGES: Final = {
    "exp": (-16, 16),
    "erf": (-4, 4),
    "rsqrt": (0, 64),
    "tanh": (-8, 8),
    "sin": (-8, 8),
}
"""Of arguments, by torch's name of the function."""


def _layer_norm(gpu: Backend, draws: Draws, scale: int) -> Work:
    from torch.nn.functional import layer_norm

    x = _uniform(draws, "x", (_ROWS * scale, _COLUMNS), -4, 4)
    reference = layer_norm(x.cpu().double(), (_COLUMNS,))
    # mean and variance are sums of n terms, each within n u of the sum of magnitudes (Higham,
    # Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2)
    bound = 4 * _COLUMNS * _UNIT * (1 + reference.abs())
    return Repeated(lambda: layer_norm(x, (_COLUMNS,)), reference, bound, x.numel())


def _softmax(gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    x = _uniform(draws, "x", (_ROWS * scale, _COLUMNS), -8, 8)
    reference = torch.softmax(x.cpu().double(), 1)
    # the argument of exp is at most 16 and rounded once, and n terms are summed
    bound = (16 + 2 * _FUNCTION_ULPS + _COLUMNS) * 2 * _UNIT * reference
    return Repeated(lambda: torch.softmax(x, 1), reference, bound, x.numel())


def _attention(gpu: Backend, draws: Draws, scale: int) -> Work:
    from torch.nn.functional import scaled_dot_product_attention as attention

    heads, tokens, width = 2 * scale, 64, 32
    q, k, v = (_uniform(draws, each, (1, heads, tokens, width), -1, 1) for each in "qkv")
    reference = attention(q.cpu().double(), k.cpu().double(), v.cpu().double())
    # scores are sums of `width` products below 1, and arguments of exp; then `tokens` are summed
    error = (2 * width * width**0.5 + 2 * _FUNCTION_ULPS + 2 * tokens) * 2 * _UNIT
    return Repeated(lambda: attention(q, k, v), reference, (reference * 0) + error, 3 * q.numel())


_TRAINED_STEPS: Final = 3
_WIDTH: Final = 64


def _training(gpu: Backend, draws: Draws, scale: int) -> Work:
    """A few steps of a small model: forward, backward and the update. The result is its weights."""
    import torch

    x = _uniform(draws, "x", (_ROWS * scale, _WIDTH), -1, 1)
    wanted = _uniform(draws, "wanted", (_ROWS * scale, 1), -1, 1)
    first = [
        _uniform(draws, "first", (_WIDTH, _WIDTH), -1, 1) / 8,
        _uniform(draws, "last", (_WIDTH, 1), -1, 1) / 8,
    ]

    def trained(x: torch.Tensor, wanted: torch.Tensor, *begin: torch.Tensor) -> torch.Tensor:
        weights = [each.clone().requires_grad_() for each in begin]
        for _ in range(_TRAINED_STEPS):
            loss = ((torch.tanh(x @ weights[0]) @ weights[1] - wanted) ** 2).mean()
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= 0.1 * gradient
        return torch.cat([each.detach().flatten() for each in weights])

    given = (x, wanted, *first)
    reference = trained(*(each.cpu().double() for each in given))
    # every sum has at most 64 * scale or 64 terms of magnitude 1; a step multiplies by 0.1
    error = _TRAINED_STEPS * 8 * (_WIDTH + _ROWS * scale) * _UNIT
    return Repeated(lambda: trained(*given), reference, reference * 0 + error, x.numel())


_OPERATIONS: Final[dict[str, Callable[[Backend, Draws, int], Work]]] = {
    **{name: partial(_function, name) for name in _RANGES},
    "layer_norm": _layer_norm,
    "softmax": _softmax,
    "attention": _attention,
    "training": _training,
}
PROBES: Final = tuple(
    Probe(f"repeated/float32[{name}]", "float32", make, partial(lacks, "float32"))
    for name, make in _OPERATIONS.items()
)
