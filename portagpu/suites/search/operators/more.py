"""Samples that torch's database lacks: windows, sizes that divide, large numbers, mixed dtypes.

They have the oracle and the bounds of all samples. Reports on GPUs name each of these sizes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.operators.calls import class_of
from portagpu.suites.search.operators.database import full_name
from portagpu.suites.search.operators.internals import torch_internals
from portagpu.suites.search.operators.samples import changed, seeded, tensors
from portagpu.suites.search.operators.samples import made as made_by_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portagpu.suites.search.operators.database import Operator
    from portagpu.suites.search.operators.samples import Sample

_SEED: Final = 4321
ATTENTION: Final = "nn.functional.scaled_dot_product_attention"
Shapes = tuple[tuple[int, ...], ...]
_DIVIDED: Final = tuple((((2, 3, *(2, 6, 4)[3 - n :]),), {"output_size": 2}) for n in (1, 2, 3))
"""Outputs of which each takes as many inputs as the others, which kernels of their own do."""
_POOLED: Final = (
    (((2, 3, 6, 6),), {"kernel_size": 2, "stride": 2, "padding": 1}),
    (((2, 4, 5, 4),), {"kernel_size": 3, "stride": 1, "padding": 1}),
    (((1, 2, 40, 40),), {"kernel_size": 17, "stride": 10}),
)
OWN: Final[Mapping[str, tuple[tuple[Shapes, Mapping[str, Any]], ...]]] = {
    # the shapes of the tensors, and what else is given
    "nn.functional.conv1d": ((((2, 1, 90), (4, 1, 33)), {"stride": 10}),),
    "nn.functional.conv2d": (
        (((1, 1, 40, 40), (4, 1, 17, 17)), {"stride": 10}),
        (((2, 4, 1, 1), (4, 4, 3, 3)), {"padding": 1}),
        (((2, 4, 5, 5), (4, 4, 1, 1), (4,)), {}),
        (((2, 4, 6, 6), (4, 1, 3, 3)), {"groups": 4, "padding": 1}),
    ),
    "nn.functional.conv3d": ((((2, 4, 1, 1, 1), (4, 4, 3, 3, 3)), {"padding": 1}),),
    "nn.functional.avg_pool2d": _POOLED,
    "nn.functional.max_pool2d": _POOLED,
    **{
        f"nn.functional.adaptive_{kind}_pool{n}d": (_DIVIDED[n - 1],)
        for kind in ("avg", "max")
        for n in (1, 2, 3)
    },
    "cdist": (
        (((5, 7), (6, 7)), {"compute_mode": "donot_use_mm_for_euclid_dist"}),
        (((30, 7), (33, 7)), {"compute_mode": "use_mm_for_euclid_dist"}),
    ),
    # factors of no change, of no whole number and below 1: kernels map places both ways
    "nn.functional.interpolate (nearest)": tuple(
        (((2, 2, 12, 13),), {"mode": "nearest", **how})
        for how in ({"scale_factor": 1.25}, {"scale_factor": 0.25}, {"size": (29, 41)})
    ),
    "nn.functional.interpolate (bilinear)": (
        (((2, 2, 4, 7),), {"mode": "bilinear", "scale_factor": 1.0239}),
    ),
    "nn.functional.interpolate (linear)": (
        (((2, 2, 2),), {"mode": "linear", "size": 10, "align_corners": True}),
    ),
    "nn.functional.interpolate (trilinear)": (
        (((1, 2, 4, 8, 16),), {"mode": "trilinear", "scale_factor": (0.25, 0.125, 0.0625)}),
    ),
    ATTENTION: ((((2, 3, 4), (2, 5, 4), (2, 5, 4), (3, 5)), {"scale": 0.3}),),
}
POSITIVE: Final = 80_000
NEGATIVE: Final = 30_000
"""The sums of the positive and the negative numbers of a large sample of float16: on the way, and
of squares, they are beyond it, where torch adds in float32, and the result is not. It is so large
that the roundings of all terms are less."""

COMPOSED: Final = ("masked.", "nanmean", "index_reduce", "trapz", "trapezoid", "cumulative_trap")
"""Which round a sum before they divide or multiply it (pytorch v2.13.0: nanmean in ReduceOps.cpp,
index_reduce in TensorAdvancedIndexing.cpp, trapezoid in Integration.cpp)."""


SPECIAL: Final = (0.0, -0.0, 1.0, -1.0, 3.0, math.inf, -math.inf, math.nan)
"""Of which an elementwise operator gets every one, and one of two operands every pair."""
MORE: Final = 2
"""In place of a half: these samples alone."""


def has_more(operator: Operator, dtype: str) -> bool:
    """Whether there are such samples; float64 is its own reference."""
    own = dtype in ("float32", "float16", "bfloat16", "complex64") and full_name(operator) in OWN
    if dtype in ("float32", "float16", "bfloat16") and _operands(operator):
        return True
    if dtype == "int64" and _operands(operator) == 2:
        return True
    return own or (dtype == "float16" and _reduces(operator))


def _operands(operator: Operator) -> int:
    """How many operands an elementwise operator has that is defined for special numbers; else 0."""
    core = torch_internals("opinfo.core")
    if class_of(operator) != "elementwise":
        return 0
    if isinstance(operator, core.BinaryUfuncInfo):
        return 2
    return 1 if isinstance(operator, core.UnaryUfuncInfo) else 0


def _reduces(operator: Operator) -> bool:
    return class_of(operator) == "reductions" and not operator.name.startswith(COMPOSED)


def more_samples(operator: Operator, dtype: Any, gradient: bool) -> list[Sample]:
    """The operator's own samples, a large one of a reduction in float16, and mixed dtypes."""
    import torch
    from torch.testing import make_tensor

    sample_input = torch_internals("opinfo.core").SampleInput
    make = partial(make_tensor, device="cpu", dtype=dtype, low=-1, high=1, requires_grad=gradient)
    found = []
    for number, (shapes, named) in enumerate(OWN.get(full_name(operator), ())):
        with seeded(_SEED + number):
            made = [make(shape) for shape in shapes]
        found.append(sample_input(made[0], args=tuple(made[1:]), kwargs=dict(named)))
    if operator.name == ATTENTION:
        with seeded(_SEED):
            found += [sample_input(given[0], args=given[1:]) for given in _masked(make, dtype)]
    if dtype == torch.int64 and _operands(operator) == 2:
        # a boolean without dimensions does not widen whole numbers
        both = make((2, 3), low=-9, high=10), torch.tensor(True)
        for one, other in (both, both[::-1]):
            found.append(sample_input(one.clone(), args=(other.clone(),)))
    if dtype.is_floating_point and (count := _operands(operator)):
        columns = torch.cartesian_prod(*[torch.tensor(SPECIAL, dtype=dtype)] * count).view(
            -1, count
        )
        given = [each.clone() for each in columns.unbind(1)]
        found.append(sample_input(given[0], args=tuple(given[1:])))
    if dtype == torch.float16 and _reduces(operator):
        usual = max(made_by_torch(operator, dtype, gradient), key=_elements)
        found.append(changed(usual, _large))
    return found


def _masked(make: Callable[..., Any], dtype: Any) -> list[tuple[Any, ...]]:
    """Operands of attention with masks: one hides more keys than a block has, one is to be added.

    Kernels have blocks of up to 128 keys. Of the second, all heads have the same keys and values,
    which are there once; the mask is float32 where the others have 16 bits. Next to float64 torch
    reads such a mask as float64 on a CPU (v2.13.0).
    """
    import torch

    seen = torch.ones(3, 130, dtype=torch.bool)
    seen[1, :128] = False
    seen[2, 1:] = False
    hidden = make((1, 2, 3, 4)), make((1, 2, 130, 4)), make((1, 2, 130, 4)), seen
    once = [make((1, 1, 33, 4)).detach().expand(1, 2, 33, 4) for _ in range(2)]
    added = make(
        (3, 33), dtype=torch.float32 if dtype.itemsize == 2 else dtype, requires_grad=False
    )
    return [hidden, (make((1, 2, 3, 4)), *once, added)]


def _elements(sample: Sample) -> tuple[int, int]:
    """The elements of the largest tensor; of as many those over all of them, without arguments."""
    given = len(sample.args) + len(sample.kwargs)
    return max((each.numel() for each in tensors(sample)), default=0), -given


def _large(value: Any) -> Any:
    """Large numbers, the positive ones first: their sum on the way is larger than float16 has."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.dim() or not value.is_floating_point():
        return value
    wide = value.double()
    for part, total in ((wide.clamp(min=0), POSITIVE), (wide.clamp(max=0), NEGATIVE)):
        whole = part.sum().abs()
        if 0 < whole < math.inf:
            wide = torch.where(part != 0, wide * total / whole, wide)
    return wide.to(value.dtype).flatten().sort(descending=True).values.view(value.shape)
