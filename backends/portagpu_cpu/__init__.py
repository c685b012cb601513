"""The CPU: the backend over torch and Gloo, the reference that runs everywhere."""

from typing import Final

from portagpu.base.plugins import VendorPackage

PACKAGE: Final = VendorPackage(backend="portagpu_cpu.plugin:PLUGIN")


def __getattr__(name: str) -> object:
    """The plugin and its class under their names of contract 1.0 to 1.4."""
    if name not in ("CpuPlugin", "PLUGIN"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from portagpu_cpu import plugin

    return getattr(plugin, name)
