"""Devices over time: samples to the terminal, to JSON lines and to a Prometheus endpoint.

``run.monitor`` looks at all devices again and again. ``sample`` has what a look gives, ``tracker``
what changed since the last one, ``stall`` the rule for stalled jobs, ``lines`` and ``endpoint``
two outputs, ``metrics`` the endpoint's names. The terminal's is ``portagpu.cli``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.monitor.endpoint import Endpoint as Endpoint
    from portagpu.monitor.endpoint import EndpointError as EndpointError
    from portagpu.monitor.endpoint import parse_address as parse_address
    from portagpu.monitor.lines import JsonLines as JsonLines
    from portagpu.monitor.options import LONGEST_S as LONGEST_S
    from portagpu.monitor.options import SHORTEST_S as SHORTEST_S
    from portagpu.monitor.options import MonitorOptions as MonitorOptions
    from portagpu.monitor.run import Watched as Watched
    from portagpu.monitor.run import monitor as monitor
    from portagpu.monitor.sample import Event as Event
    from portagpu.monitor.sample import Happening as Happening
    from portagpu.monitor.sample import Round as Round
    from portagpu.monitor.sample import Sample as Sample
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.monitor.endpoint": "Endpoint EndpointError parse_address",
            "portagpu.monitor.lines": "JsonLines",
            "portagpu.monitor.options": "LONGEST_S SHORTEST_S MonitorOptions",
            "portagpu.monitor.run": "Watched monitor",
            "portagpu.monitor.sample": "Event Happening Round Sample",
        },
    )
