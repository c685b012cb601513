"""One import for training code on NVIDIA, AMD and CPU.

Importing this package imports neither torch nor a vendor's package and opens no device: every name
is loaded from its module on first use and kept. ``__init__.pyi`` lists them.
"""

from __future__ import annotations

from portagpu._version import __version__


def _leave_working_folder_out() -> None:
    """Take off the path what ``python -m portagpu...`` alone has put there: the working folder.

    A file in it, which may be a stranger's recording, would stand in for a module. It stays where
    this package was imported from it, and in every other program.
    """
    import os
    import sys

    # while the module is looked for, "-m" stands where its name stood
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:
        return
    named = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    try:
        here = os.getcwd()  # noqa: PTH109 - importing pathlib is most of this package's import
    except FileNotFoundError:
        return
    from_here = __file__ == os.path.join(here, __name__, "__init__.py")  # noqa: PTH118 - as above
    if named.partition(".")[0] == __name__ and sys.path[:1] == [here] and not from_here:
        del sys.path[0]


_leave_working_folder_out()


def _homes() -> dict[str, list[str]]:
    """The names of each module, as the stub imports them: they are listed there alone."""
    found: dict[str, list[str]] = {}
    stub = __spec__.loader.get_data(__file__.rpartition(".")[0] + ".pyi")
    for line in stub.decode().splitlines():
        if line.startswith("from "):
            _, module, _, name, *_ = line.split()
            found.setdefault(module, []).append(name)
    return found


_HOME = _homes()
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]  # noqa: PLE0604 - the stub's names


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if module == __name__:  # importing a submodule sets the name
        return import_module(f"{module}.{name}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
