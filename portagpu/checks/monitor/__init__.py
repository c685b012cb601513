"""Devices over time: samples to the terminal, to JSON lines and to a Prometheus endpoint.

``run.monitor`` looks at all devices again and again. ``sample`` has what a look gives, what changed
since the last one and the rule for stalled jobs, ``lines`` and ``endpoint`` two
outputs, ``metrics`` the endpoint's names and its dashboard. The terminal's is ``portagpu.cli``'s.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
