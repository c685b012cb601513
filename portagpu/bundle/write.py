"""The file of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.bundle.check import parse
from portagpu.bundle.document import file_name, make, to_text
from portagpu.files import write_atomic
from portagpu.redact.names import machine_names

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.results.run import Run


def write_bundle(run: Run, effort: str, folder: Path) -> Path:
    """Write the bundle of a run on this machine into ``folder`` and return its path.

    It is validated first. Raises BundleError with the reason if there is none, and OutputError.
    """
    text = to_text(make(run, effort, machine_names()))
    bundle = parse(text.encode())
    return write_atomic(folder / file_name(bundle), text)
