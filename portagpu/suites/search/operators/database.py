"""Torch's operator database: loaded once, and what this package needs of it."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from portagpu.suites.search.area import NotSearchable

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


@cache
def operators() -> dict[tuple[str, str], Operator]:
    """All operators of the database by name and variant.

    Raises NotSearchable where a package is missing, or torch's database is another one.
    """
    import torch

    # importing the database forbids assignments to torch.backends, which other code makes
    forbid = torch.backends.disable_global_flags
    torch.backends.disable_global_flags = lambda: None
    try:
        from torch.testing._internal import common_methods_invocations as invocations
    except ImportError as error:
        missing = error.name or str(error)
        raise NotSearchable(
            f"torch's operator database needs {missing}: pip install {missing}"
            if not missing.startswith("torch")
            else f"torch {torch.__version__} has no {_PLACE}"
        ) from error
    finally:
        torch.backends.disable_global_flags = forbid
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
