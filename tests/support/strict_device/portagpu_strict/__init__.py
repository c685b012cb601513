"""The backend ``strict``: a vendor of whom PortaGPU has no word. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu import Plugin, Status

if TYPE_CHECKING:
    from portagpu import Backend


class StrictPlugin(Plugin):
    """Two devices that are always there, and are only used when they are asked for."""

    name = "strict"
    contract = (1, 2)
    vendor = "strictmaker"

    def status(self) -> Status:
        """Usable where torch is."""
        from importlib.util import find_spec

        if find_spec("torch") is None:
            return Status(False, "torch is not installed")
        return Status(True, "the strict device is made of the host's memory")

    def count(self) -> int:
        """Two devices, as in strict.cpp."""
        return 2

    def current_index(self) -> int | None:
        """torch's answer once the device is loaded."""
        import sys

        loaded = sys.modules.get("portagpu_strict.device")
        return None if loaded is None else loaded.StrictBackend.current_index()

    def prepare(self) -> None:
        """Load the device's library."""
        import portagpu_strict.device  # noqa: F401

    def open(self, index: int) -> Backend:
        """Open the device; from here on torch is needed."""
        from portagpu_strict.device import StrictBackend

        return StrictBackend(self, index)


PLUGIN: Final = StrictPlugin()
