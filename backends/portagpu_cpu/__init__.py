"""The CPU: the backend over torch and Gloo, the reference that runs everywhere."""

from typing import Final

from portagpu.base.plugins import VendorPackage

PACKAGE: Final = VendorPackage(backend="portagpu_cpu.plugin:PLUGIN")
