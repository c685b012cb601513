"""Checks that this installation is complete: a suite with a missing file must not pass.

Two sources state the contents. The wheel's ``RECORD`` (https://packaging.python.org/specifications/
recording-installed-packages) has the SHA-256 of every installed file. ``matrix/contents.toml`` has
the gates and the number of cases in each area; it also covers a checkout, which has no ``RECORD``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import (
    DocumentError,
    count,
    each,
    object_of,
    read_toml,
    text,
    values_of,
)
from portagpu.base.errors import PortagpuError
from portagpu.base.paths import matrix_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "portagpu.contents/1"
_CONTENTS: Final = object_of({"gates": each(text), "conformance": values_of(count)}, others=True)
WRITE_PAGES: Final = "python -m tests.support.pages"


class DamagedInstallation(PortagpuError, RuntimeError):
    """A file of this installation is missing or altered; the message names it."""


@cache
def check_installation() -> None:
    """Raise DamagedInstallation if a file differs from the wheel's RECORD.

    Every file of the matrix has to be in the record. A checkout has none, and is not checked.
    """
    matrix = matrix_dir()
    if not matrix.is_relative_to(Path(__file__).parents[1]):
        return
    # not distribution.files: since Python 3.12 it leaves out what is missing
    try:
        distribution = importlib.metadata.distribution("portagpu")
        record = distribution.read_text("RECORD") or ""
    except importlib.metadata.PackageNotFoundError:
        record = ""
    rows = (row for row in csv.reader(record.splitlines()) if len(row) > 1)
    stated = {
        Path(str(distribution.locate_file(name))): digest
        # what lies next to the packages, such as the command, is elsewhere after pip's --target
        for name, digest, *_ in rows
        if digest and ".." not in Path(name).parts
    }
    for path in sorted(matrix.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and path not in stated:
            raise _damage_error(f"its record (RECORD) does not name {path}")
    for path, digest in stated.items():
        kind, _, value = digest.partition("=")
        try:
            found = hashlib.new(kind, path.read_bytes()).digest()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise _damage_error(f"{path} cannot be compared with the record: {why}") from None
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != value:
            raise _damage_error(f"{path} is not as it was installed")


def stated_gates() -> tuple[str, ...]:
    """The ids of the bring-up's gates, in order."""
    return tuple(_contents()["gates"])


def missing_cases(found: Mapping[str, int]) -> str:
    """The difference between the cases found, by area, and those stated; empty if there is none."""
    stated: Mapping[str, int] = _contents()["conformance"]
    wrong = [
        f"{found.get(area, 0)} of {stated.get(area, 0)} in {area}"
        for area in dict.fromkeys([*stated, *found])
        if found.get(area, 0) != stated.get(area, 0)
    ]
    if not wrong:
        return ""
    found_of = ", ".join(wrong)
    return f"there are {found_of}: reinstall portagpu, or, after a change of cases, {WRITE_PAGES}"


def _contents() -> dict[str, Any]:
    try:
        found: dict[str, Any] = read_toml(matrix_dir() / "contents.toml", SCHEMA, _CONTENTS)
    except DocumentError as error:
        raise _damage_error(str(error)) from None
    return found


def _damage_error(what: str) -> DamagedInstallation:
    return DamagedInstallation(f"this installation is damaged: {what}; reinstall portagpu")
