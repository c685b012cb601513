"""The document ``portagpu.clearance/1``: that a device of a node was replaced or cleared.

It lies among the results that it speaks of. ``portagpu fleet clear`` writes it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from portagpu.base.documents import DocumentError, decode, encode
from portagpu.base.errors import ResultError
from portagpu.base.files import write_atomic
from portagpu.reports.bundles.times import wrong_clock
from portagpu.runs.ledger import Clearance, Relief, instant

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = "portagpu.clearance/1"
_NOT_OF_A_NAME: Final = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """``at`` is RFC 3339 with its zone; the other keys are those of ``Clearance``."""

    node: str
    device: str
    at: str
    what: Relief
    reason: str
    schema: str = SCHEMA


def parse_clearance(document: object, now: datetime) -> Clearance:
    """The clearance in a document; raises ResultError, also for one that is in the future."""
    try:
        read = decode(_Document, document, "clearance")
        moment = datetime.fromisoformat(read.at)
    except (DocumentError, ValueError) as error:
        raise ResultError(str(error)) from error
    if moment.tzinfo is None:
        raise ResultError(f"clearance.at: is {read.at}, without a zone: end it with Z for UTC")
    if not read.reason.strip():
        raise ResultError("clearance.reason: is empty: write why the failures no longer count")
    if wrong := wrong_clock(read.at, now):
        raise ResultError(wrong.replace("run.started", "clearance.at"))
    return Clearance(
        node=read.node,
        device=read.device,
        at_s=instant(read.at),
        what=read.what,
        reason=read.reason,
    )


def write_clearance(
    folder: Path, *, node: str, device: str, what: Relief, reason: str, now: datetime
) -> Path:
    """Write the document into ``folder`` and return its file; raises OutputError."""
    document = _Document(
        node=node, device=device, at=f"{now:%Y-%m-%dT%H:%M:%S.%fZ}", what=what, reason=reason
    )
    named = _NOT_OF_A_NAME.sub("-", node)[:80]
    path = folder / f"clearance-{now:%Y%m%dT%H%M%S%fZ}-{named}.json"
    return write_atomic(path, json.dumps(encode(document), indent=1) + "\n")
