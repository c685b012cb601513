"""What several runs say together of the same devices: the one place that combines verdicts.

A :class:`Fact` is what one result is about. These rules decide what stands of it:

- The newest run that judged a fact decides. PASS and FAIL judge. A FAIL stays until a run that was
  not interrupted passes the same fact on the same device; no other verdict clears it.
- A value that was silently wrong stays whatever passes later, until a :class:`Clearance` of its
  device: one that computes wrong now and then passes in between.
- Runs are ordered by the instants of their starts. Of runs within a second of each other nobody can
  say which is newer: the worse verdict counts.
- A recording is judged alone: it neither replaces nor clears what ran (:func:`lines`).
- A device that a later run over all devices does not list is a failure.

Nothing here reads a file or a clock. ``docs/results.md`` states the rules for users.
"""

from __future__ import annotations

from portagpu.runs.ledger.accounts import (
    ABSENT,
    IDENTITY,
    Absent,
    Account,
    Clearance,
    Device,
    Fact,
    LateStatements,
    Line,
    Owner,
    Relief,
    Standing,
    Statement,
    account_of,
    devices_of,
    fact_of,
    host_of,
    instant,
    lines,
    owner_of,
    same_id,
)
from portagpu.runs.ledger.balance import OF_SEVERAL, Balance, balance

__all__ = [
    "ABSENT",
    "IDENTITY",
    "OF_SEVERAL",
    "Absent",
    "Account",
    "Balance",
    "Clearance",
    "Device",
    "Fact",
    "LateStatements",
    "Line",
    "Owner",
    "Relief",
    "Standing",
    "Statement",
    "account_of",
    "balance",
    "devices_of",
    "fact_of",
    "host_of",
    "instant",
    "lines",
    "owner_of",
    "same_id",
]
