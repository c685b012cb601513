"""Planning a training: the memory of a rank, and which parallel layouts fit and how fast."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
