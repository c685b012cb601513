"""Random programs over several ranks."""

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import Search, case


@case(
    "collectives/random-programs",
    spec="Each rank gets what the model gives: the right values, no others written, inputs as they "
    "were, whatever operation, dtype, root, group and order.",
    capability=Capability.COLLECTIVES,
    outcome="bounded: (n-1) u sum|x| + u |sum| where numbers are not exact in any order",
    covers=("Comm.reduce_ops",),
    traps=("C01", "C02", "P13", "P20"),
    params={"n": (2, 3, 4, 8)},
    search=Search("collectives-{n}", seconds=2.5),
    smoke={"n": 2},
    does_not_show="ranks of one machine: nothing about several machines or their network",
)
def test_random_programs(search, ranks, n):
    search()
