"""Slurm's scripts of a fleet, with a stand-in for the check that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.reports.fleet.scripts import write_scripts

if TYPE_CHECKING:
    from pathlib import Path

FAULT: Final = "portagpu health: isolate: links/active on gpu:3: 17 of 18 links are up (and 1 more)"


def check(folder: Path) -> list[str]:
    """Stands for portagpu: a fault where a file says so, "$" and quotes to be kept from shells."""
    well = 'echo "portagpu health: no finding"; exit 0'
    code = f'read code < "$0/$SLURMD_NODENAME" || {{ {well}; }}; echo "{FAULT}"; exit "$code"'
    return ["/bin/sh", "-c", code, str(folder)]


def scripts_in(folder: Path) -> Path:
    """The folder of the scripts, whose check reads the file of its node in ``folder``."""
    written = folder / "scripts of ours"
    for path in write_scripts(written, check(folder), ["--expect-devices", "8"]):
        path.write_text(path.read_text().replace("/run/portagpu", str(folder)))
    return written
