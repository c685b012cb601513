"""A prolog, an epilog and a HealthCheckProgram for Slurm that call ``portagpu health``.

The files next to this one are templates: words between @ are replaced. Sources: slurm.conf(5), and
Slurm's prolog and epilog guide, which forbids Slurm's commands and long work in both.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from portagpu._version import __version__
from portagpu.base.files import check_writable, write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE: Final = Path(__file__).resolve().parent
_FILES: Final = {
    "prolog.sh": ("prolog.sh", "prolog", ()),
    "epilog.sh": ("prolog.sh", "epilog", ()),
    "healthcheck.sh": ("healthcheck.sh", "healthcheck", ("--fail-on-unknown",)),
    "README.txt": ("README.txt", "prolog", ()),
}
"""File -> (its template, the gate of ``portagpu health``, further words)."""


def write_scripts(folder: Path, program: Sequence[str], options: Sequence[str] = ()) -> list[Path]:
    """Write the scripts and their instructions; ``options`` are further ones of the check.

    Raises OutputError.
    """
    for name in _FILES:
        check_writable(folder / name)
    written = []
    for name, (template, gate, words) in _FILES.items():
        command = [*program, "health", "--gate", gate, *words, *options]
        text = (_HERE / template).read_text(encoding="utf-8")
        for key, value in {
            "@COMMAND@": shlex.join(command),
            "@FOLDER@": str(folder),
            "@NAME@": gate.capitalize(),
            "@VERSION@": __version__,
        }.items():
            text = text.replace(key, value)
        path = write_atomic(folder / name, text)
        if name.endswith(".sh"):
            path.chmod(0o755)
        written.append(path)
    return written
