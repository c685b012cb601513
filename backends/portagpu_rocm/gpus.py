"""All GPUs of AMD, by amdsmi or else pyrsmi, completed by the driver's files; in a child process.

Imports no torch. Readings of a library come first: the driver's files say what it does not.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.distributions import install
from portagpu.facts.host import Tree
from portagpu.facts.readings.document import to_document
from portagpu.facts.readings.first_known import first_known
from portagpu.facts.readings.library import open_library
from portagpu_rocm.amdsmi_gpus import amdsmi_findings
from portagpu_rocm.kernel_gpus import kernel_findings
from portagpu_rocm.pyrsmi_gpus import pyrsmi_findings

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagpu.facts.readings import Findings

_kept_library: Final = cache(open_library)


def probe(only: str | None = None) -> dict[str, Any]:
    """The findings as JSON, of the GPU at the PCI address ``only`` or of all.

    A module, library, driver or GPU that does not answer is a problem.
    """
    return to_document(_findings(open_library, only))


def sample() -> dict[str, Any]:
    """The values of all GPUs that change, as JSON; the library stays open for the next call."""
    return to_document(_findings(_kept_library, changing=True))


def _findings(
    opened: Callable[[str, str, str], tuple[Any, str]],
    only: str | None = None,
    *,
    changing: bool = False,
) -> Findings:
    by_kernel = kernel_findings(Tree(), only, changing=changing)
    amdsmi, first = opened("amdsmi", "amdsmi_init", "install the one of your ROCm")
    if not first:
        return _completed(amdsmi_findings(amdsmi, only, changing=changing), by_kernel)
    # pyrsmi tries amdsmi again and survives only its absence, not its failure
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    pyrsmi, second = opened("pyrsmi.rocml", "smi_initialize", install("rocm"))
    if not second:
        found = _completed(pyrsmi_findings(pyrsmi, only), by_kernel)
        return replace(found, problems=(f"pyrsmi answers alone: amdsmi {first}",))
    problem = f"AMD SMI does not answer: amdsmi {first}; pyrsmi {second}"
    return replace(by_kernel, problems=(problem,))


def _completed(found: Findings, by_kernel: Findings) -> Findings:
    """The library's findings, with values of the driver's files where it has none."""
    others = {reading.pci: reading for reading in by_kernel.readings}
    linked = {link.a.pci for link in found.links}
    return replace(
        found,
        readings=tuple(
            first_known([reading, others[reading.pci]]) if reading.pci in others else reading
            for reading in found.readings
        ),
        links=(*found.links, *(link for link in by_kernel.links if link.a.pci not in linked)),
    )
