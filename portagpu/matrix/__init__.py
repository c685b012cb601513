"""The hardware matrix: what was shown of each target, and running what this machine can.

``docs/matrix.md`` explains it. Nothing here needs torch.
"""

from __future__ import annotations

from portagpu.matrix.evidence import Cell, Source, cells, read_source, read_sources
from portagpu.matrix.table import Row, document, markdown, rows, summary

__all__ = [
    "Cell",
    "Row",
    "Source",
    "cells",
    "document",
    "markdown",
    "read_source",
    "read_sources",
    "rows",
    "summary",
]
