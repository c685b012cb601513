"""Where ranks belong: rings, trees, domains and groups over the links of a machine."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
