"""The hardware bring-up checklist: ordered gates as data, run to one verdict."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
