"""Seeded random programs: what they should give, what they give, and the smallest that differs.

An area (:mod:`portagpu.search.area`) has a model of one part of the contract in plain Python, and
draws programs: lists of calls. :func:`portagpu.search.engine.search` runs them in forked processes
until its time is over, shrinks the first that differs from the model, and repeats it. The cases
``*/random-programs`` of the suite call it.
"""

from portagpu.search.area import Area, load_area
from portagpu.search.engine import Failure, Report, SearchRequest, search
from portagpu.search.programs import Call, Program, from_text, program_line, to_text

__all__ = [
    "Area",
    "Call",
    "Failure",
    "Program",
    "Report",
    "SearchRequest",
    "from_text",
    "load_area",
    "program_line",
    "search",
    "to_text",
]
