"""Which devices torch sees. It opens the driver's runtime: run it in a child process."""

from __future__ import annotations

from importlib import import_module

import torch

from portagpu_torch_gpu.describe import pci_address


def addresses(identity: str) -> list[list[str | None]]:
    """[PCI address, UUID] of every visible device; ``identity`` names the vendor's module."""
    device_uuid = import_module(identity).device_uuid
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append([pci_address(properties), device_uuid(properties)])
    return found
