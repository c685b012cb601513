"""Launch planning and occupancy: what fits a device, from its facts alone."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
