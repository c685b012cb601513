"""The installed compiler. Triton is found without importing it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import MissingDependency
from portagpu.base.plugins import install

if TYPE_CHECKING:
    from collections.abc import Iterable

TRITON: Final = "Triton"
"""The name of that compiler in results."""
MAJOR: Final = 3
"""The major version of Triton that the kernels and readers of machine code support."""
_VERSION: Final = re.compile(r"^__version__ = ['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """``stamp`` changes with the installed files, where the version does not."""

    name: str
    version: str
    stamp: str

    def __str__(self) -> str:
        """ "Triton 3.9.0"."""
        return f"{self.name} {self.version}"


def find_compiler() -> Compiler:
    """The installed Triton; raises MissingDependency that says what to install."""
    try:
        spec = importlib.util.find_spec("triton")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise MissingDependency(f"Triton is not installed: {install('compile')}")
    file = Path(spec.origin)
    try:
        found = _VERSION.search(file.read_text("utf-8", "replace"))
    except OSError as error:
        raise MissingDependency(
            f"cannot read {file}: {error.strerror}; {install('compile')}"
        ) from error
    if found is None:
        raise MissingDependency(f"{file} states no version; reinstall triton: {install('compile')}")
    version = found.group(1)
    if version.split(".", 1)[0] != str(MAJOR):
        raise MissingDependency(
            f"Triton {version} is installed, the kernels are written for Triton {MAJOR}: "
            f"{install('compile')}"
        )
    return Compiler(TRITON, version, stamp(sorted(file.parent.glob("_C/*.so"))))


def stamp(files: Iterable[Path]) -> str:
    """A digest of names, sizes and times of files. It changes with the installation."""
    stated = []
    for file in files:
        about = file.stat()
        stated.append(f"{file.name} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(stated).encode()).hexdigest()
