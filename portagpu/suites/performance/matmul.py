"""Matrix products with a checked answer: the load of several measures. Needs torch.

Every element of a product is judged where its operands are exact: integers times powers of two
(``portagpu.train.exact``). Sums of K products leave them few bits, and few bits take less power:
AMD states 1215 TFLOPS in fp8 for the numbers 1 to 10 and 981 for sines (``matrix/targets``). So
what is compared with a figure multiplies random real numbers, next to an exact product of the same
shape.

Linear layers in fp8 follow the hybrid recipe: weights and activations in e4m3, gradients in e5m2,
whose range is larger (Micikevicius et al., arXiv 2209.05433, section 3; ``Format.HYBRID`` of
Transformer Engine; ``torchao.float8`` with a tensorwise scale). Scales are dynamic: each maps the
largest element of this very tensor to the largest number of the format. What lies between products
is bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.performance.cases import usual_layout
from portagpu.suites.performance.timing import WrongValue
from portagpu.train.exact import products
from portagpu.train.exact.draws import Draws
from portagpu.train.exact.judge import ACCUMULATOR_BITS, NotExactError, differences, digest, fullest

if TYPE_CHECKING:
    import torch
    from torch import nn

    from portagpu.devices.contract import Backend
    from portagpu.devices.precision.model import Fp8
    from portagpu.train.exact.judge import Wrong
    from portagpu.train.exact.probe import Work

SAMPLED: Final = 8
"""Rows, and columns, that are compared with float64: the first, the last and random ones."""
_PART: Final = 8192
"""Columns of the second operand that are converted to float64 at a time."""

_HALF_ULP: Final = {"fp64": 2**-53, "fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11}
"""The unit roundoff u of what a product is written in: half the gap above 1."""
_TF32_INPUT: Final = 2**-10
"""tf32 keeps 10 bits of the fraction; torch may cut instead of round, which is a whole ulp."""
_FP8_ACCUMULATE: Final = (128, 2**-13)
"""fp8 matrix units may add up 128 products with about 14 bits before they are added in float32
(DeepSeek-V3 technical report, arXiv 2412.19437, section 3.3.2)."""
_KINDS: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
}
"""What exact products call a dtype."""
_MAKING: Final = (32, 48)
"""Bytes that each element of the operands and of the result takes while a product is made and
judged: integers of 64 bits, and what is computed of them."""
RIGHT: Final = WrongValue("")
"""Of values of which nothing is wrong."""
_FEW: Final = 3
"""The largest integer of an operand where the other one has as many bits as can be."""
_unit_scales: dict[torch.device, torch.Tensor] = {}
_MIN_AMAX: Final = 1e-12
"""Of the largest element of a tensor: one of zeros has a scale too."""
_EDGE: Final = 32


@dataclass(slots=True)
class Product:
    """C = A B with A (m, k), B (k, n) and C (m, n) on a device, and random A and B.

    ``result`` holds the last C; A and B are exact in their dtype, so that float64 products of them
    are the reference. ``exact`` judges every element of C where the operands are exact, and
    ``sampled`` says why they are not where they should be.
    """

    dtype: str
    m: int
    n: int
    k: int
    a: torch.Tensor
    b: torch.Tensor
    result: torch.Tensor
    exact: Work | None = None
    sampled: str = ""

    @property
    def operations(self) -> int:
        """2 M N K: a multiplication and an addition for each of the M N K products."""
        return 2 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> int:
        """Both operands read and the result written, once each."""
        return sum(each.nbytes for each in (self.a, self.b, self.result))

    @property
    def shape(self) -> dict[str, int | str]:
        """The shape as results write it."""
        return {"m": self.m, "n": self.n, "k": self.k, "dtype": self.dtype}


def product(
    gpu: Backend, dtype: str, m: int, n: int, k: int, seed: int, contiguous: str | None = None
) -> Product:
    """Make the operands and the result of a product of matrices.

    Operands are random: normal for floating-point dtypes, all of -128 to 127 for int8, where only
    64 is proven for B if the device's int8 products saturate. Sets torch's
    switches so that only "tf32" rounds float32 operands, and that partial sums of 16-bit products
    are not rounded to 16 bits.

    :param gpu: The device.
    :param dtype: "fp64", "fp32", "tf32", "bf16", "fp16", "fp8" or "int8".
    :param m: Rows of A, of shape (m, k), and of the result.
    :param n: Columns of B, of shape (k, n), and of the result.
    :param k: Columns of A and rows of B.
    :param seed: The seed of the operands.
    :param contiguous: The index along which A and the one along which B is contiguous, as
        ``portagpu.facts.targets.model.CONTIGUOUS`` lists them; by default ``usual_layout``.
    :raises ValueError: The backend has no fp8 arithmetic.
    """
    import torch

    _switch(gpu, dtype)
    generator = torch.Generator(gpu.device).manual_seed(seed)
    on = {"generator": generator, "device": gpu.device}
    if dtype == "int8":
        a = torch.randint(-128, 128, (m, k), dtype=torch.int8, **on)  # type: ignore[call-overload]
        low, high = _int8_range(gpu)
        b = torch.randint(low, high + 1, (n, k), dtype=torch.int8, **on).t()  # type: ignore[call-overload]
        result = torch.empty((m, n), dtype=torch.int32, device=gpu.device)
        return Product(dtype, m, n, k, a, b, result)
    if dtype == "fp8":
        if gpu.precision.fp8 is None:
            raise ValueError(f"the {gpu.name} backend has no fp8 arithmetic")
        kind = gpu.precision.fp8.e4m3
        a = torch.randn((m, k), **on).to(kind)  # type: ignore[call-overload]
        # torch._scaled_mm wants its second operand column by column
        b = torch.randn((n, k), **on).to(kind).t()  # type: ignore[call-overload]
        result = torch.empty((m, n), dtype=torch.bfloat16, device=gpu.device)
        return Product(dtype, m, n, k, a, b, result)
    kind = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }[dtype]
    along_a, along_b = tuple(contiguous or usual_layout(dtype))
    a = torch.randn((m, k) if along_a == "k" else (k, m), **on).to(kind)  # type: ignore[call-overload]
    b = torch.randn((k, n) if along_b == "n" else (n, k), **on).to(kind)  # type: ignore[call-overload]
    a, b = a if along_a == "k" else a.t(), b if along_b == "n" else b.t()
    return Product(dtype, m, n, k, a, b, torch.empty((m, n), dtype=kind, device=gpu.device))


def _switch(gpu: Backend, dtype: str) -> None:
    """Have only "tf32" round float32 operands, and no partial sum be rounded to 16 bits."""
    import torch

    gpu.set_float32_precision("tf32" if dtype == "tf32" else "ieee")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def judged_product(
    gpu: Backend, dtype: str, m: int, n: int, k: int, seed: int, contiguous: str | None = None
) -> Product:
    """The operands and the result of a product of which ``verify`` judges every element.

    They are the largest integers whose sums are exact, times a power of two for each row of A and
    each column of B. The seed decides which operand has more bits (``_largest``). Where memory does
    not suffice to make and judge them, or no integers are small enough, it is what ``product``
    makes, and ``sampled`` says why.

    Parameters and errors are those of ``product``.
    """
    import torch

    needed = _MAKING[0] * (m + n) * k + _MAKING[1] * m * n
    if needed > gpu.mem_get_info()[0]:
        why = f"exact operands and what judges them need {needed / 2**20:,.1f} MiB of memory"
        return replace(product(gpu, dtype, m, n, k, seed, contiguous), sampled=why)
    kind = _kind(gpu, dtype)
    _switch(gpu, dtype)
    largest = _largest(gpu, kind, k, seed)
    form = products.Form(m, n, k, *largest, contiguous or usual_layout(dtype))
    try:
        of, a, b = products.operands(kind, form, Draws(seed, gpu.device))
    except NotExactError as error:
        return replace(product(gpu, dtype, m, n, k, seed, contiguous), sampled=str(error))
    exact = products.judged(gpu, kind, of, partial(products.multiply, gpu, kind, a, b))
    result = torch.empty((m, n), dtype=getattr(torch, kind.result), device=gpu.device)
    return Product(dtype, m, n, k, a, b, result, exact)


def _kind(gpu: Backend, dtype: str) -> products.Kind:
    """How exact products have that dtype."""
    if dtype != "fp8":
        name = _KINDS[dtype]
    elif gpu.precision.fp8 is None:
        raise ValueError(f"the {gpu.name} backend has no fp8 arithmetic")
    else:
        name = str(gpu.precision.fp8.e4m3).removeprefix("torch.")
    return next(each for each in products.KINDS if each.name == name)


def _largest(gpu: Backend, kind: products.Kind, k: int, seed: int) -> tuple[int, int]:
    """The largest integers of A and B whose sums of K products are exact; 1 where none are.

    They are equal for one seed of three. For the others those of one operand are few, so that the
    other one has as many bits as can be.
    """
    bits = ACCUMULATOR_BITS[kind.name]
    left, right = kind.bits
    most = (1 << left) - 1, (1 << right) - 1
    if kind.name == "int8":
        most = 127, _int8_range(gpu)[1]
    found = fullest(k, bits, most)
    if found != most and (narrow := seed % 3):
        few = (most[0], _FEW) if narrow == 1 else (_FEW, most[1])
        found = fullest(k, bits, few)
    # larger integers are drawn as that number of random bits
    drawn = [(1 << each.bit_length() - 1) - 1 if each >> 30 else each for each in found]
    return (drawn[0], drawn[1]) if all(drawn) else (1, 1)


def _int8_range(gpu: Backend) -> tuple[int, int]:
    """The values of B of which int8 products are exact on that device."""
    import torch

    return (-64, 64) if torch.int8 in gpu.precision.saturates else (-128, 127)


def judged_in_words(work: Product) -> str:
    """How ``verify`` judges the product, and of which operands."""
    if work.exact is None:
        return f"sampled rows and columns, because {work.sampled}"
    return "every element, of integers times powers of two, whose sums are exact"


def operands_in_words(gpu: Backend, dtype: str) -> str:
    """What :func:`product` fills operands with."""
    if dtype != "int8":
        return "random normal numbers"
    low, high = _int8_range(gpu)
    return f"random integers of -128 to 127, those of B of {low} to {high}"


def multiply(work: Product) -> None:
    """Write A B to ``work.result``."""
    import torch

    if work.dtype == "int8":
        torch._int_mm(work.a, work.b, out=work.result)
    elif work.dtype == "fp8":
        one = _unit_scale(work.a.device)
        torch._scaled_mm(work.a, work.b, one, one, out_dtype=torch.bfloat16, out=work.result)
    else:
        torch.mm(work.a, work.b, out=work.result)


def _unit_scale(device: torch.device) -> torch.Tensor:
    import torch

    if device not in _unit_scales:
        _unit_scales[device] = torch.ones((), device=device)
    return _unit_scales[device]


def poison(work: Product) -> None:
    """Overwrite the result, so that an old one cannot pass for a new one."""
    work.result.fill_(no_product(work.result))


def no_product(result: torch.Tensor) -> float:
    """What no right result is full of."""
    return float("nan") if result.is_floating_point() else -1


def verify(work: Product, seed: int) -> WrongValue | None:
    """What is wrong with ``work.result``; None where nothing is.

    Every element of an exact product is judged, by its bits. Of another one every element has to
    be finite, and sampled rows and columns are compared with float64 products on the host. A dot
    product of length K that is accumulated with unit roundoff v and written with u differs by at
    most ``K v (|A| |B|) + u |C|`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
    edition, section 3.1, to first order); integers have to be equal.
    """
    import torch

    if work.exact is not None:
        return wrong_elements(work, work.exact.judge(work.result))
    if work.result.is_floating_point() and not bool(torch.isfinite(work.result).all()):
        return WrongValue(
            f"the {work.dtype} product holds values that are not finite", digest(work.result)[:16]
        )
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (_sample(size, generator) for size in (work.m, work.n))
    a, b = work.a.cpu(), work.b.cpu()
    found = work.result[rows.to(work.result.device)].cpu()
    # in parts: float64 of all of a wide operand may not fit the host's memory
    for start in range(0, work.n, _PART):
        part = slice(start, start + _PART)
        wrong = _compare(work, a[rows], b[:, part], found[:, part], "row", rows)
        if wrong:
            return wrong
    found = work.result[:, columns.to(work.result.device)].cpu()
    return _compare(work, a, b[:, columns], found, "column", columns)


def wrong_elements(work: Product, wrong: Wrong | None) -> WrongValue | None:
    """The first wrong element of a product, with the digest of all of them."""
    import torch

    if wrong is None:
        return None
    of = f"{wrong.count} of {math.prod(wrong.shape)} elements"
    if not wrong.places.numel():
        # the arithmetic of integers that judges them may be what is broken, too
        return WrongValue(f"the {work.dtype} product is wrong in {wrong.count} rows", "")
    row, column = divmod(int(wrong.places[0]), wrong.shape[1])
    found, expected = (
        each[:1].view(getattr(torch, wrong.dtype)) for each in (wrong.found, wrong.expected)
    )
    sentence = (
        f"the {work.dtype} product is wrong in row {row}, column {column}: {float(found):.6g} "
        f"instead of {float(expected):.6g}; {of} are"
    )
    return WrongValue(sentence, wrong.digest())


def first_difference(work: Product, results: torch.Tensor) -> WrongValue | None:
    """What is wrong with the first product that is not ``work.result``, which is right.

    :param work: A product whose result was judged.
    :param results: Results of the same operands, shape (products, m, n).
    """
    # values and not bits: both zeros are right, and NaN, which is not itself, is wrong
    different = (results != work.result).flatten(1).any(1)
    if not bool(different.any()):
        return None
    which = int(different.nonzero()[0])
    found = wrong_elements(work, differences(results[which], work.result))
    other = int(different.sum())
    return found and found._replace(
        sentence=f"{found.sentence}; {other} of {len(results)} products of these operands differ"
    )


def _sample(size: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    inner = torch.randint(0, size, (SAMPLED - 2,), generator=generator).tolist()
    return torch.tensor(sorted({0, size - 1, *inner}))


def _compare(
    work: Product,
    a: torch.Tensor,
    b: torch.Tensor,
    found: torch.Tensor,
    what: str,
    where: torch.Tensor,
) -> WrongValue | None:
    a64, b64, found64 = a.double(), b.double(), found.double()
    reference = a64 @ b64
    error = (found64 - reference).abs()
    excess = error - _bound(work, a64.abs() @ b64.abs(), reference.abs())
    wrong = ~(excess <= 0)
    if not bool(wrong.any()):
        return None
    index = int(excess.argmax())
    row, column = divmod(index, reference.shape[1])
    place = int(where[row if what == "row" else column])
    sentence = (
        f"the {work.dtype} product is wrong in {what} {place}: {float(found64[row, column]):.6g} "
        f"instead of {float(reference[row, column]):.6g}"
    )
    return WrongValue(sentence, digest(found.where(wrong, 0))[:16])


def _bound(work: Product, magnitude: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The largest error that rounding explains; ``magnitude`` is |A| |B|."""
    if work.dtype == "int8":
        return magnitude * 0
    if work.dtype == "fp8":
        length, roundoff = _FP8_ACCUMULATE
        accumulated = min(work.k, length) * roundoff + work.k * _HALF_ULP["fp32"]
        return accumulated * magnitude + 2 * _HALF_ULP["bf16"] * reference
    if work.dtype == "tf32":
        return (2 * _TF32_INPUT + work.k * _HALF_ULP["fp32"]) * magnitude
    written = 2 * _HALF_ULP[work.dtype] * reference
    if work.dtype == "fp64":
        # the reference is rounded just as much
        return 2 * work.k * _HALF_ULP["fp64"] * magnitude + written
    return work.k * _HALF_ULP["fp32"] * magnitude + written


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
            return multiply_scaled(left, one, right.t(), other)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, one, weight, other = context.saved_tensors
            given, scale = scaled(gradient, pair.e5m2)
            of_x = multiply_scaled(given, scale, weight, other)
            return of_x, multiply_scaled(given.t(), scale, x, one).float()

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

    largest = x.detach().abs().amax().float().clamp(min=_MIN_AMAX)
    scale = largest / torch.finfo(kind).max
    return (x.detach().float() / scale).to(kind), scale


def multiply_scaled(
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
            multiply_scaled(left, one, right, other)
        except (RuntimeError, ValueError, TypeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"torch refuses the products of fp8 {name} here: {first}"
    return ""
