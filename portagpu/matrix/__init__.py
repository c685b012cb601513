"""The hardware matrix: what was shown of each target, and running what this machine can.

``docs/matrix.md`` explains it. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.matrix.evidence import Cell as Cell
    from portagpu.matrix.evidence import cells as cells
    from portagpu.matrix.table import Row as Row
    from portagpu.matrix.table import document as document
    from portagpu.matrix.table import markdown as markdown
    from portagpu.matrix.table import rows as rows
    from portagpu.matrix.table import summary as summary
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.matrix.evidence": "Cell cells",
            "portagpu.matrix.table": "Row document markdown rows summary",
        },
    )
