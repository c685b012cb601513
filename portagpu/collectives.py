"""Collectives that do the same with every library, and compressed gradients for DDP."""

from portagpu.base.lazy import lazy_names

__path__: list[str] = []
"""Modules of contract 1.x below this name are found by ``portagpu/_moved.py``."""
__all__, __getattr__, __dir__ = lazy_names(__spec__)
