"""Faults of operators: what a kernel of one family does wrong in one region.

A family is kernels by the names that ATen gives them, forward and backward. Its fault is a dispatch
mode around what stands for the device here: calls of samples that are not the reference's.
"""

from __future__ import annotations

import contextlib
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from portagpu.suites.search.operators import pair
from tests.support.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAMILIES: dict[str, tuple[str, str]] = {
    "sums and differences": ("elementwise", "add sub rsub neg"),
    "products and quotients": ("elementwise", "mul div reciprocal addcmul addcdiv"),
    "exponentials": ("elementwise", "exp exp2 expm1 sigmoid tanh erf log log1p log2 softplus"),
    "roots and powers": ("elementwise", "sqrt rsqrt pow hypot"),
    "angles": ("elementwise", "sin cos tan atan2 asin acos atan sinc sinh cosh"),
    "comparisons": ("elementwise", "eq ne lt le gt ge maximum minimum clamp clamp_min where"),
    "activations": ("elementwise", "gelu silu elu leaky_relu mish hardswish threshold_backward"),
    "reductions": ("reductions", "sum mean prod var std amax amin norm linalg_vector_norm"),
    "searches": ("reductions", "argmax argmin max min cummax any all count_nonzero nansum"),
    "scans": ("reductions", "cumsum cumprod logcumsumexp logsumexp"),
    "softmax": ("reductions", "_softmax _log_softmax _softmax_backward_data"),
    "matrix products": ("linalg", "mm bmm addmm baddbmm addmv mv dot"),
    "factorisations": (
        "linalg",
        "linalg_cholesky_ex linalg_qr _linalg_svd _linalg_eigh _linalg_det _linalg_solve_ex",
    ),
    "convolutions": ("nn", "convolution convolution_backward"),
    "pooling": ("nn", "avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d avg_pool3d"),
    "normalisation": ("nn", "native_layer_norm native_batch_norm native_group_norm"),
    "indexing": ("movement", "index index_select gather take scatter scatter_add embedding"),
    "copies": ("movement", "cat copy clone _to_copy repeat roll flip stack constant_pad_nd"),
    "triangles": ("movement", "tril triu diag_embed diagonal_copy"),
    "sorting": ("movement", "sort topk"),
    "attention": ("nn", "_safe_softmax"),
    "interpolation": ("nn", "upsample_nearest2d_backward upsample_linear1d_backward"),
    "Fourier transforms": ("other", "_fft_c2c _fft_r2c _fft_c2r"),
}  # fmt: skip
"""The area that lists most operators of the family, and its kernels."""

Region = "Callable[[Any, list[Any]], bool]"
"""Whether a fault is in a call with that first result and those inputs."""
REGIONS: dict[str, Any] = {
    "everywhere": lambda found, given: True,
    "in float32": lambda found, given: found.dtype == torch.float32,
    "in float16": lambda found, given: found.dtype == torch.float16,
    "in bfloat16": lambda found, given: found.dtype == torch.bfloat16,
    "in complex64": lambda found, given: found.dtype == torch.complex64,
    "of 8 bits": lambda found, given: found.dtype in (torch.int8, torch.uint8),
    "of int64": lambda found, given: found.dtype == torch.int64,
    "of more than 32 elements": lambda found, given: found.numel() > 32,
    "of an odd size": lambda found, given: found.numel() % 2 == 1 and found.numel() > 1,
    "of a strided input": lambda found, given: any(not each.is_contiguous() for each in given),
    "of three dimensions or more": lambda found, given: found.dim() > 2,
    "of one number": lambda found, given: found.dim() == 0,
    "in backward": lambda found, given: torch._C._current_autograd_node() is not None,
    "of a window above 16": lambda found, given: len(given) > 1 and max(given[1].shape[2:]) > 16,
    "of another layout of the gradient": lambda found, given: (
        torch._C._current_autograd_node() is not None
        and len({_is_channels_last(each) for each in given[:2]}) == 2
    ),
    "of more than 128 columns": lambda found, given: found.shape[-1] > 128,
    "from a size that is not a multiple": lambda found, given: (
        given[0].shape[-1] > found.shape[-1] and given[0].shape[-1] % found.shape[-1] != 0
    ),
    "of a broadcast input": lambda found, given: any(
        step == 0 and size > 1
        for each in given
        for size, step in zip(each.shape, each.stride(), strict=True)
    ),
    "of a boolean without dimensions": lambda found, given: (
        found.dtype == torch.int64
        and any(each.dtype == torch.bool and not each.dim() for each in given)
    ),
    "of large numbers in float16": lambda found, given: (
        found.dtype == torch.float16 and given[0].numel() and bool(given[0].abs().max() > 2**9)
    ),
}
OF_ONE_FAMILY = {
    "of more than 128 columns": "attention",
    "from a size that is not a multiple": "interpolation",
    "of a broadcast input": "copies",
    "of a boolean without dimensions": "sums and differences",
    "of a window above 16": "convolutions",
    "of another layout of the gradient": "convolutions",
    "of large numbers in float16": "reductions",
}
"""Regions that kernels of one family alone have."""


def _is_channels_last(tensor: Any) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _changed(found: Any, change: Callable[[Any], None]) -> Any:
    """A contiguous copy in which the flat elements are changed."""
    flat = found.flatten().clone()
    if flat.numel():
        change(flat)
    return flat.reshape(found.shape)


def _last(flat: Any) -> None:
    flat[-1] = 0


def _swap(flat: Any) -> None:
    flat[:2] = flat[:2].flip(0)


def _shift(flat: Any) -> None:
    flat[:] = flat.roll(1)


def _half(flat: Any) -> None:
    flat[flat.numel() // 2 :] = 0


def _sign(flat: Any) -> None:
    flat[0] = ~flat[0] if flat.dtype == torch.bool else -flat[0]


def _more(flat: Any) -> None:
    flat[-1] = ~flat[-1] if flat.dtype == torch.bool else flat[-1] * 1.25 + 1


def _short(flat: Any) -> None:
    flat[:] = flat.bfloat16() if flat.is_floating_point() else flat


def _nan(flat: Any) -> None:
    if flat.is_floating_point() or flat.is_complex():
        flat[-1] = torch.nan
    else:
        flat[-1] = 77


ELEMENTS: dict[str, Callable[[Any], None]] = {
    "does not write the last element": _last,
    "swaps the first two elements": _swap,
    "is off by one element": _shift,
    "does not write the second half": _half,
    "has the other sign in the first element": _sign,
    "adds to the last element": _more,
    "keeps 8 bits": _short,
    "gives NaN last": _nan,
}
CALLS = ("writes its input", "gives another dtype", "gives the result before", "loses a dimension")


class _Faulty(TorchDispatchMode):
    """The kernels of a family are wrong in a region."""

    def __init__(self, names: str, region: Any, wrong: str) -> None:
        super().__init__()
        self.names = set(names.split())
        self.region = region
        self.wrong = wrong
        self.before: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        first = found[0] if isinstance(found, (tuple, list)) and found else found
        if name.rstrip("_") not in self.names or not isinstance(first, torch.Tensor):
            return found
        given = [each for each in args if isinstance(each, torch.Tensor)]
        if first.layout != torch.strided or not self.region(first, given):
            return found
        bad = self._bad(first, given)
        if name.endswith("_"):
            if bad.shape == first.shape:
                first.copy_(bad)
            return found
        return type(found)([bad, *found[1:]]) if isinstance(found, (tuple, list)) else bad

    def _bad(self, first: Any, given: list[Any]) -> Any:
        if self.wrong in ELEMENTS:
            return _changed(first, ELEMENTS[self.wrong])
        if self.wrong == "writes its input":
            if given and given[0].numel():
                given[0][(0,) * given[0].dim()] = 1
            return first
        if self.wrong == "gives another dtype":
            other = {torch.float32: torch.float16, torch.int64: torch.int32}
            return first.to(other.get(first.dtype, torch.float32))
        if self.wrong == "loses a dimension":
            return first[0] if first.dim() and len(first) else first
        before, self.before = self.before, first.clone()
        same = before is not None and before.shape == first.shape and before.dtype == first.dtype
        return before if same else first


@contextlib.contextmanager
def _installed(names: str, region: Any, wrong: str) -> Iterator[None]:
    mode = _Faulty(names, region, wrong)
    good = {"forward": pair.forward, "backward": pair.backward}

    def within(call: Any) -> Any:
        def faulty(*given: Any, **named: Any) -> Any:
            if named.get("widened"):
                return call(*given, **named)
            with mode:
                return call(*given, **named)

        return faulty

    for name, call in good.items():
        setattr(pair, name, within(call))
    try:
        yield
    finally:
        for name, call in good.items():
            setattr(pair, name, call)


def faults() -> list[Fault]:
    """All of them."""
    return [
        Fault(
            f"operators-{kind}",
            f"{family}: {where}: {wrong}",
            lambda names=names, region=region, wrong=wrong: _installed(names, region, wrong),
        )
        for (family, (kind, names)), (where, region), wrong in product(
            FAMILIES.items(), REGIONS.items(), [*ELEMENTS, *CALLS]
        )
        if not _equivalent(family, where, wrong)
    ]


def _equivalent(family: str, where: str, wrong: str) -> bool:
    """Whether the region has no such call, or what is wrong is within n roundings there."""
    one = where == "of one number"
    few = ("swaps", "is off by one", "loses a dimension")
    real = {"factorisations", "Fourier transforms", "convolutions", "softmax", "normalisation"}
    real |= {"pooling", "activations", "roots and powers", "exponentials", "angles"}
    whole = where in ("of 8 bits", "of int64", "of a boolean without dimensions")
    half = where in ("in float16", "in bfloat16")
    return (
        family != OF_ONE_FAMILY.get(where, family)
        or (family in ("attention", "interpolation") and where not in OF_ONE_FAMILY)
        # 11 bits rounded to 8 are within the bound of n roundings
        or (where == "of large numbers in float16" and wrong == "keeps 8 bits")
        # one number has no second, nor a dimension
        or (one and wrong.startswith(few))
        # whole numbers become float32 there, or are refused
        or (whole and family in real)
        or (where == "in complex64" and family in ("sorting", "pooling", "comparisons", "softmax"))
        # numbers of 8 or 11 bits rounded to 8 are within the bound of n roundings
        or (wrong == "keeps 8 bits" and (half or whole or family in ("comparisons", "searches")))
        # LAPACK and FFT libraries have no 16-bit kernels on a CPU
        or (half and family in ("factorisations", "Fourier transforms"))
        # what has dimensions to work on
        or (one and family in ("convolutions", "pooling", "normalisation", "triangles"))
    )
