"""Where the hardware matrix and the pages lie, in the wheel or in the checkout, and where this
process works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from portagpu.base.errors import PortagpuError

_PACKAGE: Final = Path(__file__).resolve().parents[1]


def matrix_dir() -> Path:
    """The folder that holds ``targets``, ``conformance``, ``performance`` and ``bringup``.

    An installed wheel carries it as ``portagpu/_matrix``; a checkout has it as ``matrix``.
    """
    for candidate in (_PACKAGE / "_matrix", _PACKAGE.parent / "matrix"):
        if (candidate / "targets").is_dir():
            return candidate
    check_unpacked()
    raise PortagpuError(
        "the hardware matrix is missing from this installation: reinstall portagpu from its wheel"
    )


def docs_dir() -> Path:
    """The folder of the pages: ``portagpu/_docs`` in an installed wheel, ``docs`` in a checkout."""
    for candidate in (_PACKAGE / "_docs", _PACKAGE.parent / "docs"):
        if (candidate / "design.md").is_file():
            return candidate
    raise PortagpuError("the pages are missing from this installation: reinstall portagpu")


def check_unpacked() -> None:
    """Raise PortagpuError where Python imports this package from a zip file, such as a wheel."""
    if not _PACKAGE.is_dir():
        archive = _PACKAGE.parent
        raise PortagpuError(
            f"portagpu is imported from the zip file {archive} and cannot run from it: "
            f"install it with 'pip install {archive}'"
        )


def working_folder() -> str:
    """This process's working folder; raises PortagpuError where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - a text to compare with those of sys.path
    except FileNotFoundError:
        raise PortagpuError("the working folder was deleted: cd to one that exists") from None
