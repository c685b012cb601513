"""The hardware matrix: what was shown of each target, and running what this machine can.

``docs/matrix.md`` explains it. Nothing here needs torch.
"""

from __future__ import annotations

from portagpu.matrix.evidence import Cell, cells
from portagpu.matrix.table import Row, document, markdown, rows, summary

__all__ = [
    "Cell",
    "Row",
    "cells",
    "document",
    "markdown",
    "rows",
    "summary",
]
