"""Bundles: full bring-ups of real hardware, scrubbed and hashed, for ``matrix/results``.

``docs/results.md`` describes the format. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.bundle.badges import Badge as Badge
    from portagpu.bundle.badges import earned_badges as earned_badges
    from portagpu.bundle.badges import table as table
    from portagpu.bundle.check import parse as parse
    from portagpu.bundle.check import read_bundle as read_bundle
    from portagpu.bundle.document import make as make
    from portagpu.bundle.write import write_bundle as write_bundle
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.bundle.badges": "Badge earned_badges table",
            "portagpu.bundle.check": "parse read_bundle",
            "portagpu.bundle.document": "make",
            "portagpu.bundle.write": "write_bundle",
        },
    )
