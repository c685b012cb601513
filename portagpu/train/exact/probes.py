"""Every probe, in the order in which a screen runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.train.exact import attention, convolution, products, vectors

if TYPE_CHECKING:
    from portagpu.train.exact.probe import Probe

PROBES: Final[tuple[Probe, ...]] = (
    *vectors.PROBES,
    *products.PROBES,
    *convolution.PROBES,
    *attention.PROBES,
)
