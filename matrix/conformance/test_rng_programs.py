"""Random programs over generators."""

from portagpu.suites.conformance import Search, case


@case(
    "rng/random-programs",
    spec="Equal states give equal numbers, others do not, and no call changes another generator.",
    covers=(
        "Backend.generator",
        "Backend.manual_seed",
        "Backend.get_rng_state",
        "Backend.set_rng_state",
        "Backend.initial_seed",
        "portagpu.initial_seed",
        "portagpu.manual_seed",
    ),
    traps=("P17",),
    search=Search("generators", seconds=2),
    smoke=True,
)
def test_random_programs(search):
    search()
