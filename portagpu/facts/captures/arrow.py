"""pyarrow, which holds captures in columns, or how to install it."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from portagpu.base.distributions import install
from portagpu.base.errors import MissingDependency

if TYPE_CHECKING:
    from types import ModuleType


def import_library(name: str) -> Any:
    """The module ``name``, which the extra ``trace`` installs. Raises MissingDependency."""
    try:
        return _imported(name) if sys.modules.get(name) else import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingDependency(
            f"traces need {package}, which is not installed: {install('trace')}"
        ) from error


@cache
def _imported(name: str) -> Any:
    return import_module(name)


def arrow() -> ModuleType:
    """The module ``pyarrow``. Raises MissingDependency."""
    module: ModuleType = import_library("pyarrow")
    return module
