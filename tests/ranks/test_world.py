"""Ranks begin together: none runs its function while another is still in init."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT

if TYPE_CHECKING:
    from portagpu.runs.world import Ranks

pytestmark = pytest.mark.torch

RANKS = str(ROOT / "tests/support/ranks.py")


def test_no_rank_begins_before_all_are_through_init(ranks: Ranks) -> None:
    # one that closes its group at once ends the init of a late one: Gloo says "connectFullMesh
    # failed ... Connection closed by peer", as collectives/init-and-shutdown once did
    for late in (0, 1):
        ranks.prepare(f"{RANKS}:init_slowly", backend="cpu", culprit=late, nap_s=0.5)
        try:
            outcome = ranks.run(f"{RANKS}:through_init", 2, backend="cpu")
        finally:
            ranks.prepare(f"{RANKS}:init_slowly", backend="cpu", culprit=late, nap_s=0)
        assert outcome.ok, outcome.sentence
        ends, begins = zip(*outcome.values, strict=True)
        assert min(begins) >= max(ends), f"rank {late} was late: {outcome.values}"
