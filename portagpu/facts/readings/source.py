"""What a stream reads, as data; imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What reads devices: ``module.function()`` returns findings as JSON, at each call new ones.

    ``name`` is the library's name for people. The function is called in a child process that
    imports the module once; readings and links alone are taken from its findings, and its problems.
    It returns the values that change (state, PCIe, memory errors, links) and what names the device
    (PCI address, UUID, name, memory).
    """

    name: str
    module: str
    function: str = "sample"
