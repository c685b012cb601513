"""Reading a file of whatever format: the one reader that knows its beginning."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final

from portagpu.distributions import entry_points
from portagpu.inventory.model import Findings, FormatError
from portagpu.telemetry.formats._events import ANSWERS, answers

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "portagpu.formats"
"""The group in which a distribution names a module with a reader, as those of ``FORMATS`` are."""

FORMATS: Final = (
    "nvidia_capture",
    "nvidia_smi_xml",
    "nvidia_topo",
    "nvidia_nvlink",
    "nvidia_smi_text",
    "nvml_mock",
    "amd_smi_json",
    "amd_smi_text",
    "rocm_smi_json",
    "rocm_smi_text",
    "rocminfo",
    "amdgpu_top",
    "hwloc_xml",
    "nccl_topo",
    "lspci",
    "kernel_log",
)
"""Modules of ``portagpu.telemetry.formats``; a text of several sections before what it holds."""


def read_text(text: str) -> Findings:
    """What the text says, by the first reader that knows it, and what a tool could not answer.

    Our readers come before those of distributions.

    Raises FormatError where none does, or where nothing in it can be used.
    """
    told = answers(text)
    try:
        found = _read(text)
    except FormatError:
        if not told:
            raise
        found = Findings(kind=ANSWERS)
    return replace(found, events=(*found.events, *told))


def _read(text: str) -> Findings:
    for name in FORMATS:
        module = import_module(f"portagpu.telemetry.formats.{name}")
        if module.matches(text):
            found: Findings = module.parse(text)
            return found
    reasons = ["its format is not known"]
    for point in sorted(entry_points(ENTRY_POINTS), key=lambda each: (each.name, each.value)):
        try:
            brought = _brought(point, text)
        except FormatError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's reader stops no other
            why = " ".join(f"{type(error).__name__}: {error}".split())
            reasons.append(f"the reader {point.name} ({point.value}) raised {why}")
            continue
        if brought is not None:
            return brought
    raise FormatError("; ".join(reasons))


def _brought(point: EntryPoint, text: str) -> Findings | None:
    """What the reader of a distribution says; None where it does not know the text."""
    module = point.load()
    if not module.matches(text):
        return None
    found = module.parse(text)
    if not isinstance(found, Findings):
        raise TypeError(f"parse gave a {type(found).__name__} instead of portagpu Findings")
    return found
