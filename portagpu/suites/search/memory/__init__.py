"""Counters of memory: a model of which storages live, and programs of tensors over it."""

from portagpu.suites.search.memory.area import AREA

__all__ = ["AREA"]
