"""Profiler ranges: a model of nesting, and programs of blocks that torch's profiler records."""

from portagpu.suites.search.ranges.area import AREA

__all__ = ["AREA"]
