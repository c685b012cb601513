"""The backend ``demo``: what portagpu loads to ask whether it can be used. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.plugin import Plugin, Status, Variables

if TYPE_CHECKING:
    from portagpu.plugin import Backend


class DemoPlugin(Plugin):
    """One device that is always there, and is only used when it is asked for."""

    name = "demo"
    contract = (1, 1)
    shared = True
    variables = Variables(one_by_one={"DEMO_WAIT": "1"}, caches={"DEMO_CACHE": "demo"})

    def status(self) -> Status:
        """Usable where torch is; a GPU's plugin would look for its driver and for its build."""
        from importlib.util import find_spec

        if find_spec("torch") is None:
            return Status(False, "torch is not installed")
        return Status(True, "the demo device is the host's CPU")

    def count(self) -> int:
        """One device."""
        return 1

    def open(self, index: int) -> Backend:
        """Open the device; from here on torch is needed."""
        from portagpu_demo.device import DemoBackend

        return DemoBackend(self, index)


PLUGIN: Final = DemoPlugin()
