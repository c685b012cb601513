"""Layers whose results are exact, or rounded once: attention in which one key wins alone or all win
equally, and convolutions.

In attention each key is a code word. A query is the code word of one key, so that its score is 0
with that key and at most -192 with any other: e to that power is 0 in float32, and the result is
that key's row of V. A winning score of 0 is exact also in kernels that compute powers of two and
scale the scores before they subtract the largest. Where all scores are 0 and their number is a
power of two, the result is the mean of V, which is exact too.

Another algorithm judges convolutions: they are patches of images times weights, a product of
matrices that is checked row by row. A stride of 2 keeps libraries from Fourier transforms and from
the larger Winograd transforms, whose fractions are not powers of two. The smaller ones have halves
and quarters: the sums leave the bits for these.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.judge import (
    ACCUMULATOR_BITS,
    SIGNIFICANT_BITS,
    check_operands,
    check_range,
    check_subset,
    subset_bound,
)
from portagpu.train.exact.probe import Expected, Probe
from portagpu.train.exact.products import (
    Integers,
    Kind,
    check_sums,
    exact_arithmetic,
    judged,
    operand,
)
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work


_HEADS: Final = 4
_QUERIES: Final = 256
_WIDTH: Final = 64
"""Elements of a query, a key and a value: 10 bits of 6 elements each, one that makes the winning
score 0, and 3 that are 0."""
_CODE_BITS: Final = 10
_KEYS: Final = 1 << _CODE_BITS
_REPEATED: Final = 6
_FACTOR: Final = 64
"""Of a query: 64 times the scale of the scores is 16, and words differ in 12 at least."""
_SCALE: Final = 0.25
"""A square, because some kernels multiply both operands by its root."""
_EXPONENTS: Final = {"float32": (-30, 30), "bfloat16": (-30, 30), "float16": (-7, 3)}
_VALUE_BITS: Final = {"float32": 11, "bfloat16": 8, "float16": 11}
"""Of V: kernels split float32 into two numbers of 11 bits, and not all of them keep the second."""
_MEAN: Final = 7
_UNPAIRED: Final = 16
"""Values without one of the other sign: sums of at most 224 fit 8 bits."""


def _codes(words: torch.Tensor) -> torch.Tensor:
    """The code words of integers, -1 and 1, of shape (..., 60)."""
    import torch

    shifts = torch.arange(_CODE_BITS, device=words.device)
    bits = (words.unsqueeze(-1) >> shifts) & 1
    return (2 * bits - 1).repeat_interleave(_REPEATED, -1)


def _filled(codes: torch.Tensor, last: int) -> torch.Tensor:
    """Code words with the element that makes the winning score 0, and zeros."""
    import torch

    extra = torch.zeros((*codes.shape[:-1], _WIDTH - codes.shape[-1]), dtype=torch.int64)
    extra[..., 0] = last
    return torch.cat((codes, extra.to(codes.device)), -1)


def _attend(
    gpu: Backend, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    import torch

    with exact_arithmetic(gpu):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=_SCALE)


def _selection(dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    kind, heads = getattr(torch, dtype), _HEADS * scale
    largest = (1 << _VALUE_BITS[dtype]) - 1
    what = f"attention by selection in {dtype}"
    words = draws.integers("words", (1, heads, _QUERIES), 0, _KEYS - 1)
    # another order of the keys in each head: where the winner stands says nothing
    order = draws.bits("order", (1, heads, _KEYS)).argsort(-1)
    place = order.argsort(-1).gather(-1, words)
    query = _FACTOR * _filled(_codes(words), -1)
    key = _filled(_codes(order), _CODE_BITS * _REPEATED)
    value = draws.integers("values", (1, heads, _KEYS, _WIDTH), -largest, largest)
    for each in (query // _FACTOR, key, value):
        check_operands(each, SIGNIFICANT_BITS[dtype], what)
    check_subset(float(2 * _FACTOR * _CODE_BITS * _REPEATED), 24, what)
    check_range(float(largest), _EXPONENTS[dtype], dtype, what)
    columns = draws.integers("columns", (1, heads, 1, _WIDTH), *_EXPONENTS[dtype])
    values = operand(value, columns, dtype)
    expected = values.gather(2, place.unsqueeze(-1).expand(-1, -1, -1, _WIDTH))
    queries, keys = query.to(kind), key.to(kind)
    inputs = queries.numel() + keys.numel() + values.numel()
    return Expected(partial(_attend, gpu, queries, keys, values), expected, inputs)


def _uniform(dtype: str, gpu: Backend, draws: Draws, scale: int) -> Work:
    import torch

    kind, heads = getattr(torch, dtype), _HEADS * scale
    half = _WIDTH // 2
    what = f"attention to all keys in {dtype}"
    query = draws.integers("queries", (1, heads, _QUERIES, half), -_MEAN, _MEAN)
    key = draws.integers("keys", (1, heads, _KEYS, half), -_MEAN, _MEAN)
    value = draws.integers("values", (1, heads, _KEYS // 2, _WIDTH), -_MEAN, _MEAN)
    value = torch.cat((value, -value), 2)
    value[:, :, :_UNPAIRED] = draws.integers("sums", (1, heads, _UNPAIRED, _WIDTH), -_MEAN, _MEAN)
    for each in (query, key, value):
        check_operands(each, SIGNIFICANT_BITS[dtype], what)
    check_subset(float(_KEYS * _MEAN), 24, what)
    # kernels for 16 bits may have weights that are only nearly equal: nothing is left to round
    check_operands(value.sum(2), SIGNIFICANT_BITS[dtype], what)
    # means are multiples of 2**-10
    check_range(float(_MEAN * _KEYS), (-_CODE_BITS, 0), dtype, what)
    mean = value.sum(2, keepdim=True).float() / _KEYS
    expected = mean.to(kind).expand(-1, -1, _QUERIES, -1).contiguous()
    # the second half undoes the first, so that each score is 0
    queries, keys = torch.cat((query, -query), -1).to(kind), torch.cat((key, key), -1).to(kind)
    values = value.to(kind)
    inputs = queries.numel() + keys.numel() + values.numel()
    return Expected(partial(_attend, gpu, queries, keys, values), expected, inputs)


ATTENTION_PROBES: Final = tuple(
    Probe(f"attention/{dtype}[{variant}]", dtype, partial(make, dtype), partial(lacks, dtype))
    for dtype in _EXPONENTS
    for variant, make in (("selection", _selection), ("uniform", _uniform))
)


_IMAGES: Final = 4
_INPUT: Final = 16
_OUTPUT: Final = 64
"""Channels."""
_SIDE: Final = 33
_KERNEL: Final = 3
_STRIDE: Final = 2
_PIXEL: Final = 63
_WEIGHT: Final = 15
_WINOGRAD_BITS: Final = 6
"""What its transforms of 2 by 2 results add: a factor 4 in images, and 4 in weights, with quarters
(Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv 1509.09308)."""
_KINDS: Final = tuple(
    Kind(each, each, each, each, exponents)
    for each, exponents in (
        ("float64", (-100, 100)),
        ("float32", (-30, 30)),
        ("bfloat16", (-30, 30)),
        ("float16", (-7, -5)),
    )
)


def _patches(images: torch.Tensor) -> torch.Tensor:
    """The pixels under the kernel at each of its places, shape (places of all images, pixels)."""
    found = images.unfold(2, _KERNEL, _STRIDE).unfold(3, _KERNEL, _STRIDE)
    return found.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)


def _convolve(gpu: Backend, images: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The results as a matrix: a row for each place, a column for each output channel."""
    import torch

    with exact_arithmetic(gpu):
        found = torch.nn.functional.conv2d(images, weights, stride=_STRIDE)
    return found.movedim(1, -1).flatten(0, 2)


def _make_convolution(kind: Kind, gpu: Backend, draws: Draws, scale: int) -> Work:
    from portagpu.train.exact.judge import RowCheck

    count = _IMAGES * scale
    images = draws.integers("images", (count, _INPUT, _SIDE, _SIDE), -_PIXEL, _PIXEL)
    shape = (_OUTPUT, _INPUT, _KERNEL, _KERNEL)
    weights = draws.integers("weights", shape, -_WEIGHT, _WEIGHT)
    of_images = draws.integers("rows", (count, 1, 1, 1), *kind.exponents)
    of_channels = draws.integers("columns", (_OUTPUT, 1, 1, 1), *kind.exponents)
    patches, matrix = _patches(images), weights.flatten(1).t().contiguous()
    rows = of_images.flatten().repeat_interleave(patches.shape[0] // count).unsqueeze(1)
    columns = of_channels.reshape(1, _OUTPUT)
    of = Integers(patches, matrix, rows, columns, RowCheck.of(patches, matrix, draws))
    what = f"a convolution in {kind.name}"
    check_sums(kind, of, what)
    bits = ACCUMULATOR_BITS[kind.name] - _WINOGRAD_BITS
    check_subset(subset_bound(of.a, of.b), bits, what)
    images_here = operand(images, of_images, kind.left)
    weights_here = operand(weights, of_channels, kind.right)
    compute = partial(_convolve, gpu, images_here, weights_here)
    return judged(gpu, kind, of, compute)


CONVOLUTION_PROBES: Final = tuple(
    Probe(
        f"convolution/{kind.name}[3x3]",
        kind.left,
        partial(_make_convolution, kind),
        partial(lacks, kind.left),
    )
    for kind in _KINDS
)
