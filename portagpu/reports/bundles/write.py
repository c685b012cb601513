"""The file of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.base.files import write_atomic
from portagpu.base.redact.names import machine_names
from portagpu.reports.bundles.check import parse
from portagpu.reports.bundles.document import file_name, make, to_text

if TYPE_CHECKING:
    from pathlib import Path

    from portagpu.runs.results.run import Run


def write_bundle(run: Run, effort: str, folder: Path) -> Path:
    """Write the bundle of a run on this machine into ``folder`` and return its path.

    It is validated first. Raises BundleError with the reason if there is none, and OutputError.
    """
    text = to_text(make(run, effort, machine_names()))
    bundle = parse(text.encode())
    return write_atomic(folder / file_name(bundle), text)
