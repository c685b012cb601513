"""What torch.compile makes of this package's functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., object]")


def run_by_the_compiler(function: _F) -> _F:
    """Have torch.compile call this function while it compiles, and keep what it returned.

    It is what ``torch.compiler.assume_constant_result`` does, without torch: for what a process
    decides once, with locks, files and entry points that a compiler cannot follow.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
