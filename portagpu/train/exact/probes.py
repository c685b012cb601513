"""Every probe, in the order in which a screen runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.train.exact import (
    attention,
    collectives,
    convolution,
    copies,
    integers,
    memory,
    products,
    reductions,
    repeated,
    vectors,
)

if TYPE_CHECKING:
    from portagpu.train.exact.probe import Probe

PROBES: Final[tuple[Probe, ...]] = (
    *products.PROBES,
    *convolution.PROBES,
    *attention.PROBES,
    *vectors.PROBES,
    *integers.PROBES,
    *reductions.PROBES,
    *copies.PROBES,
    *memory.PROBES,
    *collectives.PROBES,
    *repeated.PROBES,
)
