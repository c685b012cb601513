"""Random programs of streams, events and graphs."""

from portagpu.contract import Capability
from portagpu.suite import Search, case


@case(
    "streams/random-programs",
    spec="Work runs in the order that streams, events, waits and graphs fix, while it is proved to "
    "be in flight.",
    capability=(Capability.STREAMS, Capability.EVENTS),
    covers=("Backend.Stream", "Backend.Event", "Backend.synchronize", "Backend.stream"),
    search=Search("ordering", seconds=4),
    smoke=True,
    does_not_show="that work overlaps; on a device that is done when a call returns, any wait",
)
def test_random_programs(search):
    search()
