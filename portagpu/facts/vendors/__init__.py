"""The vendors that installed distributions declare: the one place where the core learns of them.

The part ``vendor`` of a vendor's package is a :class:`Vendor`, which is data. Modules
above this package read it, and name no vendor themselves. All entry points are loaded once, at the
first use, each with a time limit. A broken, slow or wrong one is left out with its reason
(:func:`problems`) and does not affect the others.
"""

from __future__ import annotations

from portagpu.facts.vendors.model import (
    Blanks,
    DriverFiles,
    Fabric,
    LazyMapping,
    MaskRules,
    Numbers,
    Repeated,
    Runtime,
    TorchRules,
    Tuning,
    UuidMatch,
    Vendor,
    leave_out_table,
    problems,
    tables,
    vendor_named,
    vendors,
)

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
    "leave_out_table",
    "problems",
    "tables",
    "vendor_named",
    "vendors",
]
