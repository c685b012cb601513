"""Reading a file of whatever format: the one reader that knows its beginning."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Final

from portagpu.inventory.model import Findings, FormatError
from portagpu.telemetry.formats._events import ANSWERS, answers

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
    raise FormatError("its format is not known")
