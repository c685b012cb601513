"""Packages whose names are imported from their modules at the first use.

So a program that wants one helper of a package loads no engine that stands next to it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package that imports nothing by itself.

    ``homes`` is module -> its names, with blanks between. A name must not be that of a module of
    the package, whose import would replace it. What was imported is kept.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return sorted(module_of), find, names
