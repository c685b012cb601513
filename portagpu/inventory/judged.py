"""One judgement of a machine's devices, whatever was judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portagpu.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement; ``device`` is the culprit's address or name, None where all are well.

    ``value`` is what was seen, in ``unit`` as results write it ("1" for a count).
    """

    name: str
    verdict: Verdict
    device: str | None
    reason: str
    value: float | None = None
    unit: str | None = None
