"""Xids that other tools than the kernel's log state, with the meaning that the catalogue gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from portagpu.facts.formats import pci_address
from portagpu.facts.formats.events import events, table

if TYPE_CHECKING:
    from portagpu.facts.readings.model import Event


def xid_event(
    number: int, source: str, *, pci: str | None = None, device: str | None = None, line: str = ""
) -> Event | None:
    """The event of an Xid, as of the driver's own line; None for a number that is none.

    :param number: the Xid; 0 is that of no error.
    :param source: the kind of the text that states it.
    :param pci: the address of its GPU, in any form.
    :param device: the GPU's other name, where the text has no address.
    :param line: what the text says.
    """
    if not 0 < number < 1000:
        return None
    stated = f"NVRM: Xid (PCI:0000:00:00): {number}, "
    _, event = next(events(stated, table("kernel_log"), source))
    address = pci_address(pci)
    return event and replace(
        event, pci=address, device=None if address is not None else device, line=line
    )
