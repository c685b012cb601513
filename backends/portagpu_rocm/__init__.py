"""AMD: the backend over torch and RCCL, what is known of the vendor, and its tools' formats."""

from typing import Final

from portagpu.base.plugins import VendorPackage

PACKAGE: Final = VendorPackage(
    backend="portagpu_rocm.plugin:PLUGIN",
    vendor="portagpu_rocm.vendor:VENDOR",
    formats="portagpu_rocm.formats",
    captures="portagpu_rocm.captures",
    profiler="portagpu_rocm.profiler:PROFILER",
)
