"""Convolutions whose results are exact, or rounded once.

Another algorithm judges them: they are patches of images times weights, a product of matrices that
is checked row by row. A stride of 2 keeps libraries from Fourier transforms and from the larger
Winograd transforms, whose fractions are not powers of two. The smaller ones have halves and
quarters: the sums leave the bits for these.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from portagpu.train.exact.probe import Probe
from portagpu.train.exact.products import (
    Integers,
    Kind,
    check_sums,
    exact_arithmetic,
    judged,
    operand,
)
from portagpu.train.exact.rule import ACCUMULATOR_BITS, check_subset, subset_bound
from portagpu.train.exact.vectors import lacks

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend
    from portagpu.train.exact.draws import Draws
    from portagpu.train.exact.probe import Work

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


def _make(kind: Kind, gpu: Backend, draws: Draws, scale: int) -> Work:
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


PROBES: Final = tuple(
    Probe(
        f"convolution/{kind.name}[3x3]",
        kind.left,
        partial(_make, kind),
        partial(lacks, kind.left),
    )
    for kind in _KINDS
)
