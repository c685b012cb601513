"""Torch's operator database: loaded once, what this package needs of it, and what is not judged.

What is not judged is so by torch's own declaration, by the operator's nature, or by a fault of
torch. Torch declares for each test of its own which operators and dtypes it skips or expects to
fail there (``DecorateInfo`` of the database). A direction here is excepted by the test that asks
the same: ``test_compare_cpu`` (the same values as on the CPU), ``test_noncontiguous_samples`` and
``test_fn_grad``. Torch's tests are in test/test_ops.py and test/test_ops_gradients.py of its
sources.
"""

from __future__ import annotations

import unittest
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.area import NotSearchable
from portagpu.suites.search.operators.internals import torch_internals

if TYPE_CHECKING:
    from collections.abc import Mapping


_PLACE: Final = "torch.testing._internal.common_methods_invocations"
_NEEDED: Final = (
    "decorators",
    "get_decorators",
    "gradcheck_wrapper",
    "name",
    "op",
    "sample_inputs_func",
    "supported_backward_dtypes",
    "supported_dtypes",
    "variant_test_name",
)
"""What an operator of the database must have, as in torch 2.9 to 2.13."""

Operator = Any
"""An ``OpInfo`` of torch, which has no types."""
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
"""Tensors other than the first one have to be on the CPU (docs of torch.tensor_split)."""
OTHER_WIDTH: Final = frozenset(("linspace", "logspace", "torch.ops.aten._safe_softmax.default"))
"""Results of the default dtype (docs of torch.linspace), or of the one in which they are summed."""
KILLS: Final = frozenset(("nn.functional.group_norm",))
"""Whose gradient of the weight without that of a channels last input ends the process on a CPU, by
signal 11 (torch 2.13, and not with contiguous inputs)."""
FLOAT16: Final = frozenset(("float16",))
OWN: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "nn.functional.soft_margin_loss": (
        FLOAT16,
        "exp of the product overflows in float16 (pytorch v2.13.0, aten/src/ATen/native/Loss.cpp)",
    ),
}
"""Operator -> the dtypes in which torch's own formula is not right, and why, with the source."""


@cache
def operators() -> dict[tuple[str, str], Operator]:
    """All operators of the database by name and variant.

    Raises NotSearchable where a package is missing, or torch's database is another one.
    """
    import torch

    try:
        invocations = torch_internals("common_methods_invocations")
    except ImportError as error:
        missing = error.name or str(error)
        raise NotSearchable(
            f"torch's operator database needs {missing}: pip install {missing}"
            if not missing.startswith("torch")
            else f"torch {torch.__version__} has no {_PLACE}"
        ) from error
    found = getattr(invocations, "op_db", None)
    if not found:
        raise NotSearchable(f"torch {torch.__version__} has no op_db in {_PLACE}")
    lacking = [each for each in _NEEDED if not hasattr(found[0], each)]
    if lacking:
        raise NotSearchable(
            f"the operators of torch {torch.__version__} have no {', '.join(lacking)}: its "
            "database is another one than that of torch 2.9 to 2.13"
        )
    return {(each.name, each.variant_test_name): each for each in found}


def full_name(operator: Operator) -> str:
    """The operator's name, with its variant where it has one: "div (floor_rounding)"."""
    variant = f" ({operator.variant_test_name})" if operator.variant_test_name else ""
    return f"{operator.name}{variant}"


def dtype_name(dtype: Any) -> str:
    """The dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def claimed_dtypes(operator: Operator, device_type: str) -> list[str]:
    """The names of the dtypes that torch declares for the operator there, sorted."""
    return sorted(dtype_name(each) for each in operator.supported_dtypes(device_type))


def has_backward(operator: Operator, device_type: str, dtype: Any) -> bool:
    """Whether torch declares a gradient for that dtype there."""
    return bool(dtype in operator.supported_backward_dtypes(device_type))


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
