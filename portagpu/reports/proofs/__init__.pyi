"""The public names, each with its module, for type checkers and to load on first use."""

from portagpu.reports.proofs.evidence import Cell as Cell
from portagpu.reports.proofs.evidence import cells as cells
from portagpu.reports.proofs.table import Row as Row
from portagpu.reports.proofs.table import document as document
from portagpu.reports.proofs.table import markdown as markdown
from portagpu.reports.proofs.table import rows as rows
from portagpu.reports.proofs.table import summary as summary
