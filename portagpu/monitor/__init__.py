"""Devices over time: samples to the terminal, to JSON lines and to a Prometheus endpoint.

``run.monitor`` looks at all devices again and again. ``sample`` has what a look gives, ``tracker``
what changed since the last one, ``stall`` the rule for stalled jobs, ``lines`` and ``endpoint``
two outputs, ``metrics`` the endpoint's names. The terminal's is ``portagpu.cli``'s.
"""

from __future__ import annotations

from portagpu.monitor.endpoint import Endpoint, EndpointError, parse_address
from portagpu.monitor.lines import JsonLines
from portagpu.monitor.run import (
    LONGEST_S,
    SHORTEST_S,
    MonitorOptions,
    Watched,
    monitor,
)
from portagpu.monitor.sample import Event, Happening, Round, Sample

__all__ = [
    "LONGEST_S",
    "SHORTEST_S",
    "Endpoint",
    "EndpointError",
    "Event",
    "Happening",
    "JsonLines",
    "MonitorOptions",
    "Round",
    "Sample",
    "Watched",
    "monitor",
    "parse_address",
]
