"""The GPUs of a machine and what joins them, from every source that answers."""

from __future__ import annotations

from portagpu.machine.inventory.gpu import Gpu, Inventory

__all__ = ["Gpu", "Inventory"]
