"""Planted faults of simulated fleets, with further seeds."""

from __future__ import annotations

import pytest

from tests.unit.reports.test_fleet_rules import planted_faults_are_found


@pytest.mark.parametrize("seed", [2, 3])
def test_every_planted_fault_is_found_and_nobody_else_is_named(seed: int) -> None:
    planted_faults_are_found(seed)
