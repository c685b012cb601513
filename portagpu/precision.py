"""Number formats, their support on a device, and operations with equal results on all devices."""

from portagpu.base.lazy import names_of

__path__: list[str] = []
"""Modules of contract 1.x below this name are found by ``portagpu/_moved.py``."""
__all__, __getattr__, __dir__ = names_of(__name__, "portagpu.devices.precision")
