"""Seeded random programs: what they should give, what they give, and the smallest that differs.

An area (:mod:`portagpu.search.area`) has a model of one part of the contract in plain Python, and
draws programs: lists of calls. :func:`portagpu.search.engine.search` runs them in forked processes
until its time is over, shrinks the first that differs from the model, and repeats it. The cases
``*/random-programs`` of the suite call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.search.area import Area as Area
    from portagpu.search.area import load_area as load_area
    from portagpu.search.engine import Failure as Failure
    from portagpu.search.engine import Report as Report
    from portagpu.search.engine import SearchRequest as SearchRequest
    from portagpu.search.engine import search as search
    from portagpu.search.programs import Call as Call
    from portagpu.search.programs import Program as Program
    from portagpu.search.programs import from_text as from_text
    from portagpu.search.programs import program_line as program_line
    from portagpu.search.programs import to_text as to_text
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.search.area": "Area load_area",
            "portagpu.search.engine": "Failure Report SearchRequest search",
            "portagpu.search.programs": "Call Program from_text program_line to_text",
        },
    )
