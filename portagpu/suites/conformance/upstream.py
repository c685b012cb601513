"""PyTorch's own tests on a device, as cases of the area ``upstream``.

``instantiate_device_type_tests`` of torch.testing makes tests for types of devices. A child of the
suite opens the backend's device, has torch make the tests of its type alone, and runs each as a
case. So limits, hangs, dead processes and reports are those of every case.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import DocumentError, each, object_of, read_toml
from portagpu.facts.targets import ExpectedFailure
from portagpu.facts.targets.read import FAILURE
from portagpu.facts.torchbuild import torch_build
from portagpu.suites.conformance.options import SelectionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUITE: Final = "upstream"
"""The suite and the area of the results."""
EXPECTED_SCHEMA: Final = "portagpu.expected/1"
FILES: Final = (
    "test_accelerator.py",
    "test_binary_ufuncs.py",
    "test_indexing.py",
    "test_linalg.py",
    "test_modules.py",
    "test_nn.py",
    "test_ops.py",
    "test_ops_gradients.py",
    "test_reductions.py",
    "test_scatter_gather_ops.py",
    "test_segment_reductions.py",
    "test_shape_ops.py",
    "test_sort_and_select.py",
    "test_tensor_creation_ops.py",
    "test_torch.py",
    "test_type_promotion.py",
    "test_unary_ufuncs.py",
    "test_view_ops.py",
)
"""Files of PyTorch's test folder that make their tests for types of devices."""
_EXPECTED: Final = object_of({"expected_failures": each(FAILURE)})
_VERSION: Final = re.compile(r"\d+\.\d+")


def files_with_tests(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """The test files of that folder that may have what ``only`` names, in order.

    They are those of ``FILES`` that are there; without one all that are called ``test_*.py``. A
    name is ``upstream/FILE/CLASS/TEST`` or the beginning of one, with * and ?.

    :raises SelectionError: for a folder without test files, or one of another version of torch.
    """
    found = [folder / name for name in FILES if (folder / name).is_file()]
    found = found or sorted(folder.glob("test_*.py"))
    if not found:
        raise SelectionError(
            f"{folder} has no test_*.py: name the folder test of a checkout of PyTorch"
        )
    _check_version(folder)
    wanted = [f"{each}//".split("/")[1] or "*" for each in only]
    if wanted:
        found = [each for each in found if any(fnmatchcase(each.stem, one) for one in wanted)]
    if not found:
        raise SelectionError(f"{folder} has no test file for {', '.join(only)}")
    return found


def _check_version(folder: Path) -> None:
    """Raise SelectionError where a checkout is of another version than the torch that is here."""
    file, build = folder.parent / "version.txt", torch_build()
    here = "" if build is None else build.version or ""
    there = _VERSION.match(file.read_text("utf-8")) if file.is_file() else None
    ours = _VERSION.match(here)
    if there and ours and there[0] != ours[0]:
        raise SelectionError(
            f"{folder} is of torch {there[0]}, and {here} is installed: check out the tag "
            f"v{here.partition('+')[0]}"
        )


def expected_failures(file: Path) -> tuple[ExpectedFailure, ...]:
    """What a file of the schema ``portagpu.expected/1`` excuses; raises SelectionError."""
    try:
        rows = read_toml(file, EXPECTED_SCHEMA, _EXPECTED)["expected_failures"]
    except DocumentError as error:
        raise SelectionError(str(error)) from error
    return tuple(ExpectedFailure(**row) for row in rows)
