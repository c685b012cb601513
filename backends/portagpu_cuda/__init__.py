"""NVIDIA: the backend over torch and NCCL, what is known of the vendor, and its tools' formats."""

from typing import Final

from portagpu.base.plugins import VendorPackage

PACKAGE: Final = VendorPackage(
    backend="portagpu_cuda.plugin:PLUGIN",
    vendor="portagpu_cuda.vendor:VENDOR",
    formats="portagpu_cuda.formats",
    captures="portagpu_cuda.captures",
    profiler="portagpu_cuda.profiler:PROFILER",
)
