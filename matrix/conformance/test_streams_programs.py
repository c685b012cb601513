"""Random programs of streams, events and graphs."""

from portagpu.devices.contract import Capability
from portagpu.suites.conformance import Search, case

CALLS = (
    *("synchronize", "Stream", "stream", "current_stream", "set_stream", "default_stream"),
    *("Event", "Graph", "graph", "graph_pool_handle", "is_current_stream_capturing"),
)


@case(
    "streams/random-programs",
    spec="Work runs in the order that streams, events, waits and graphs fix, while it is proved to "
    "be in flight.",
    capability=(Capability.STREAMS, Capability.EVENTS),
    outcome="bounded: |elapsed - the host's clock around both events| <= 1 ms + 0.1 %",
    covers=(
        *(f"{of}.{name}" for of in ("Backend", "portagpu") for name in CALLS),
        "portagpu.CUDAGraph",
    ),
    traps=("G03", "G05"),
    search=Search("ordering", seconds=4),
    unaltered=("asynchrony",),
    smoke=True,
    does_not_show="that work overlaps; on a device that is done when a call returns, any wait",
)
def test_random_programs(search):
    search()
