"""What is not judged: by torch's own declaration, by the operator's nature, or by a fault of torch.

Torch declares for each test of its own which operators and dtypes it skips or expects to fail
there (``DecorateInfo`` of the database). A direction here is excepted by the test that asks the
same: ``test_compare_cpu`` (the same values as on the CPU), ``test_noncontiguous_samples`` and
``test_fn_grad``. Torch's tests are in test/test_ops.py and test/test_ops_gradients.py of its
sources.
"""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.suites.search.operators.database import Operator

FORWARD: Final = "forward"
SPREAD: Final = "not contiguous"
AGAIN: Final = "second call"
BACKWARD: Final = "backward"

_TESTS: Final[Mapping[str, tuple[str, str]]] = {
    FORWARD: ("TestCommon", "test_compare_cpu"),
    SPREAD: ("TestCommon", "test_noncontiguous_samples"),
    BACKWARD: ("TestBwdGradients", "test_fn_grad"),
}

UNINITIALISED: Final = frozenset(
    (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    )
)
"""Results that hold whatever was in memory (docs of torch.empty, Tensor.resize_)."""

WRITES: Final = frozenset(("nn.functional.batch_norm", "nn.functional.instance_norm"))
"""They write their running statistics, also where the momentum is 0 (docs of torch.nn.BatchNorm2d),
which rounds them."""

TIES: Final = frozenset(
    ("sort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "masked.median")
)
"""Which of several equal values an index names is not promised (docs of torch.sort without
``stable``, topk, kthvalue, mode, median)."""

UNWRITTEN: Final = frozenset(("linalg.lstsq",))
"""Their second call may round otherwise: gelsy begins with the pivots in ``jpvt``, which torch does
not write (pytorch v2.13.0, aten/src/ATen/native/BatchLinearAlgebra.cpp, apply_lstsq)."""

ON_THE_HOST: Final = frozenset(("tensor_split",))
"""Tensors beside the first one have to be on the CPU (docs of torch.tensor_split)."""

OTHER_WIDTH: Final = frozenset(("linspace", "logspace", "torch.ops.aten._safe_softmax.default"))
"""Results of the default dtype (docs of torch.linspace), or of the one in which they are summed."""

FLOAT16: Final = frozenset(("float16",))
OWN: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "nn.functional.soft_margin_loss": (
        FLOAT16,
        "exp of the product overflows in float16 (pytorch v2.13.0, aten/src/ATen/native/Loss.cpp)",
    ),
}
"""Operator -> the dtypes in which torch's own formula is not right, and why, with the source."""


def own_reason(operator: Operator, dtype: str) -> str:
    """Why this package does not judge the operator in that dtype; empty if it does."""
    dtypes, reason = OWN.get(operator.name, (frozenset(), ""))
    return reason if dtype in dtypes else ""


def declared(operator: Operator, direction: str, device_type: str, dtype: Any) -> bool:
    """Whether torch skips its own test of that direction, or expects it to fail."""
    if direction not in _TESTS:
        return False
    found = operator.get_decorators(*_TESTS[direction], device_type, dtype, {})
    return any(_is_skip(each) for each in found)


def _is_skip(decorator: Any) -> bool:
    """Whether a decorator is ``unittest.skip``, ``unittest.skip(reason)`` or expectedFailure."""
    if decorator in (unittest.skip, unittest.expectedFailure):
        return True
    name = getattr(decorator, "__qualname__", "")
    return bool(name.startswith("skip.<locals>"))
