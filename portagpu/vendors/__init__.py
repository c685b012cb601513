"""The vendors that installed distributions declare: the one place where the core learns of them.

An entry point of the group ``portagpu.vendors`` names a :class:`Vendor`, which is data: what it
states is read by the modules above this package, none of which knows a vendor. Entry points are
loaded once, when something is first asked of a vendor, each with a time limit. One that is broken,
slow or wrong is left out with its reason (:func:`problems`) and stops no other.
"""

from __future__ import annotations

from portagpu.vendors.loading import (
    LazyMapping,
    problems,
    report_left_out,
    tables,
    vendor_named,
    vendors,
)
from portagpu.vendors.masks import (
    Blanks,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    TorchRules,
    UuidMatch,
)
from portagpu.vendors.model import DriverFiles, Fabric, Tuning, Vendor

__all__ = [
    "Blanks",
    "DriverFiles",
    "Fabric",
    "LazyMapping",
    "MaskRules",
    "Numbers",
    "Repeated",
    "Runtime",
    "TorchRules",
    "Tuning",
    "UuidMatch",
    "Vendor",
    "problems",
    "report_left_out",
    "tables",
    "vendor_named",
    "vendors",
]
