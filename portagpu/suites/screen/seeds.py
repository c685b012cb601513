"""The seeds of a screen: the same on every device on one day, and others on the next."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from portagpu.train.exact.probe import mix


def campaign_of(moment: datetime | None = None) -> int:
    """The number of a day in UTC, such as 20261201; today's without ``moment``."""
    return int(f"{moment or datetime.now(UTC):%Y%m%d}")


def batch_seed(campaign: int, probe: str, batch: int) -> int:
    """The seed of a batch of operands, below 2**64.

    :param campaign: The number that all devices have in common, by default that of the day.
    :param probe: The name of the probe.
    :param batch: The number of the batch, from 0.
    """
    base = hashlib.sha256(f"{campaign}\0{probe}".encode()).digest()[:8]
    return mix(int.from_bytes(base, "little") + batch)
