"""Support for torch.compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., object]")


def run_by_the_compiler(function: _F) -> _F:
    """Let torch.compile call this function during compilation, and treat the result as constant.

    The effect is that of ``torch.compiler.assume_constant_result``, without importing torch. It is
    for one-time decisions that use locks, files and entry points, which a compiler cannot trace.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
