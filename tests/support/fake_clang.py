"""A clang that stands in: a script that says what it builds for, and acts when it is to build."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ARCHES = "gfx906 gfx942"


def write_clang(folder: Path, act: str) -> Path:
    """A ``clang-99`` that knows two architectures, has a linker, and does ``act`` to compile."""
    path = folder / "clang-99"
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*--print-supported-cpus*) echo {ARCHES} ;;\n"
        f"*-print-prog-name*) echo {path} ;;\n"
        "*--version*) echo clang version 99.1.2 ;;\n"
        f"*) {act} ;;\n"
        "esac\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
