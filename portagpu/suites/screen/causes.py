"""Whether the device or the software computed wrong: what its peers make of the same operands.

Devices of one run have the same operands. What is wrong on one and right on its peers is that
device. What is wrong in the same bits on all of them is the software that they share. One device
alone cannot be separated from its software.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from portagpu.base.units import count
from portagpu.facts.actions import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE: Final = "device"
SOFTWARE: Final = "software"
NOT_SEPARATED: Final = "device or software not separated"


@dataclass(frozen=True, slots=True)
class Cause:
    """What computed wrong, why that is known, and what to do."""

    cause: str
    reason: str

    @property
    def action(self) -> Action:
        """Software is not mended by taking a device out of use."""
        return Action.NONE if self.cause == SOFTWARE else Action.ISOLATE


def cause_of(own: str, peers: Sequence[Sequence[str]], *, separate: bool = True) -> Cause:
    """The cause of a wrong result.

    :param own: The digest of the wrong elements.
    :param peers: For each peer that ran the same operands, the digests of what was wrong in each of
        its runs; empty texts where nothing was.
    :param separate: Whether the peers are devices of their own, and not ranks of this one.
    """
    known = [each for each in peers if each]
    if not known:
        return Cause(NOT_SEPARATED, f"{NOT_SEPARATED}: no peer ran the same operands")
    right = [each for each in known if not any(each)]
    if right:
        which = "its peer is" if len(known) == 1 else f"{len(right)} of {len(known)} peers are"
        return Cause(DEVICE, f"the device: {which} right on the same operands")
    if separate and all(own in each for each in known):
        others = count(len(known), "peer")
        return Cause(
            SOFTWARE,
            f"the software: {others} {'is' if len(known) == 1 else 'are'} wrong in the same bits",
        )
    same = "the same" if all(own in each for each in known) else "other"
    return Cause(NOT_SEPARATED, f"{NOT_SEPARATED}: every peer is wrong too, in {same} bits")
