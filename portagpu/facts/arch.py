"""The identity of an architecture, as one small value that is compared by equality only.

Capability numbers of two vendors share a number space and mean nothing to one another: compare
``vendor`` and ``name``, never versions across vendors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arch:
    """An architecture of one vendor.

    ``vendor`` is "nvidia", "amd", "cpu" for any CPU, or the word of another vendor's targets;
    ``name`` is the compiler's name for it ("sm_90", "gfx942", "x86-64"), as :func:`base_name` gives
    it; ``warp_size`` is the number of threads that run in lockstep on this device, a power of two
    (warp, wavefront, sub-group), and 1 on a device without warps, as a CPU is: its threads run
    alone, and its vector units are listed in ``portagpu.facts.host``.
    """

    vendor: str
    name: str
    warp_size: int

    def __str__(self) -> str:
        return self.name


def base_name(name: str) -> str:
    """The architecture's name without the feature suffixes that drivers append.

    ``base_name("gfx942:sramecc+:xnack-") == "gfx942"``; ``base_name("sm_90a") == "sm_90"``.
    """
    bare = name.strip().split(":", 1)[0].lower()
    match = re.fullmatch(r"(sm_\d+)[af]", bare)
    return match.group(1) if match else bare
