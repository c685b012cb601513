"""Random programs that allocate and free."""

from portagpu.suites.conformance import Search, case

CALLS = (
    *("memory_stats", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"),
    *("memory_reserved", "max_memory_reserved", "empty_cache", "ipc_collect"),
    *("mem_get_info", "device_memory_used"),
)


@case(
    "memory/random-programs",
    spec="The counters of memory follow the tensors that live, within 16 MiB for each, and these "
    "keep what was written into them and their views.",
    outcome="bounded: 16 MiB for each tensor that came or went since empty_cache()",
    covers=(
        *(f"{of}.{name}" for of in ("Backend", "portagpu") for name in CALLS),
        "Backend.get_device_properties",
    ),
    traps=("M07",),
    search=Search("memory", seconds=3),
    smoke=True,
    does_not_show="this process only, and small amounts: nothing about a device that is full",
)
def test_random_programs(search):
    search()
