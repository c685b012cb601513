"""Random programs that allocate and free."""

from portagpu.suite import Search, case


@case(
    "memory/random-programs",
    spec="The counters of memory follow the tensors that live, within 16 MiB for each.",
    covers=("Backend.memory_stats", "Backend.memory_allocated", "Backend.empty_cache"),
    search=Search("memory", seconds=3),
    smoke=True,
    does_not_show="this process only, and small amounts: nothing about a device that is full",
)
def test_random_programs(search):
    search()
