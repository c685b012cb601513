"""Random programs of annotations and ranges."""

from portagpu.suites.conformance import Search, case


@case(
    "profiling/random-programs",
    spec="A profiler sees each range once, with its name, around what it encloses, also after "
    "errors and in threads.",
    covers=(
        "Backend.annotate",
        "Backend.listens",
        "Backend.range_push",
        "Backend.range_pop",
        "portagpu.annotate",
    ),
    search=Search("ranges", seconds=2),
    smoke=True,
)
def test_random_programs(search):
    search()
