"""The vendors' cost models against numbers that the libraries printed, and worked by hand."""

from __future__ import annotations

import math

import pytest

from portagpu.devices.collectives.choice import choose
from portagpu.devices.discovery import cost_model_for
from portagpu.facts.targets import load_target
from tests.unit.devices.test_cost_models import GIB, KIB, MIB, question


def _targets():
    known = ("nvidia", "amd")
    from portagpu.facts.targets import load_targets

    return [name for name, each in load_targets().items() if each.vendor in known]


@pytest.mark.parametrize("target", _targets())
def test_every_target_has_finite_times_for_every_operation(target):
    model = cost_model_for(load_target(target).vendor)
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for ranks, nodes in ((2, 1), (3, 1), (8, 1), (2, 2), (16, 2), (24, 3), (64, 64)):
            for size in (1, 63, 64, 4 * KIB, 3 * MIB + 1, 64 * GIB):
                found = choose(question(target, size, ranks, nodes, operation), model)
                every = (found.best, *found.alternatives)
                assert all(0 < each.time_us < math.inf for each in every)
                assert [each.time_us for each in every] == sorted(each.time_us for each in every)
