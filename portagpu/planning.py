"""Planning a training: the memory of a rank, and which parallel layouts fit and how fast."""

from portagpu.base.lazy import names_of

__path__: list[str] = []
"""Modules of contract 1.x below this name are found by ``portagpu/_moved.py``."""
__all__, __getattr__, __dir__ = names_of(__name__, "portagpu.train.planning")
