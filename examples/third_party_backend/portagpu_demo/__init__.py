"""The package of "demo", a vendor that is made up: names its parts, and imports none of them."""

from typing import Final

from portagpu.plugin import VendorPackage

PACKAGE: Final = VendorPackage(
    backend="portagpu_demo.plugin:PLUGIN",
    vendor="portagpu_demo.vendor:VENDOR",
    formats="portagpu_demo.smi",
)
