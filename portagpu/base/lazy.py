"""Packages whose names are imported from their modules at the first use.

The stub next to a package lists its public names, for type checkers and for :func:`lazy_names`. So
a program that wants one helper of a package loads no engine that stands next to it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would be most of the time of ``import portagpu``
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

    Lazy = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


def stub_names(spec: ModuleSpec) -> dict[str, str]:
    """Each name that the stub of a module imports -> the module that it is from.

    A stub has one line for each name: ``from MODULE import NAME as NAME``.
    """
    stub: bytes = spec.loader.get_data(spec.origin + "i")  # type: ignore[union-attr, operator]
    lines = (line.split() for line in stub.decode().splitlines() if line.startswith("from "))
    return {words[3]: words[1] for words in lines}


def lazy_names(spec: ModuleSpec) -> Lazy:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a module that imports nothing by itself.

    A name must not be that of a module of the package, whose import would replace it. What was
    imported is kept.
    """
    package, home_of = spec.name, stub_names(spec)

    def find(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        if home == package:  # importing a submodule sets the name
            return import_module(f"{package}.{name}")
        module = import_module(home)
        # a submodule of another package is not an attribute of it before it is imported
        found = hasattr(module, name)
        value = getattr(module, name) if found else import_module(f"{home}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return _lazy(package, sorted(home_of), find)


def names_of(face: str, package: str) -> Lazy:
    """The same for ``face``, a public module that has the names and submodules of ``package``."""
    from importlib import import_module

    found = import_module(package)

    def find(name: str) -> Any:
        if name.startswith("_") or hasattr(found, name):
            return getattr(found, name)
        submodule = f"{package}.{name}"
        try:
            return import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name != submodule:
                raise
        raise AttributeError(f"module {face!r} has no attribute {name!r}")

    return _lazy(face, list(found.__all__), find)


def _lazy(module: str, names: list[str], find: Callable[[str], Any]) -> Lazy:
    return names, find, lambda: sorted({*vars(sys.modules[module]), *names})
