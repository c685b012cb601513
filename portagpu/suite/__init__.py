"""The conformance suite as a library: cases, and :func:`conform` that runs them.

A case is a pytest function in ``matrix/conformance/test_<area>.py`` with an id, a sentence that
specifies it, and the capability that it needs. It runs in a child process with its own
configuration, so that no file of the user's project can change a verdict.
``docs/conformance.md`` says how to write one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.suite.cases import AREAS as AREAS
    from portagpu.suite.cases import Case as Case
    from portagpu.suite.cases import NotClaimed as NotClaimed
    from portagpu.suite.cases import NotHere as NotHere
    from portagpu.suite.cases import Search as Search
    from portagpu.suite.cases import case as case
    from portagpu.suite.cases import refused as refused
    from portagpu.suite.engine import ConformOptions as ConformOptions
    from portagpu.suite.engine import conform as conform
    from portagpu.suite.engine import list_cases as list_cases
    from portagpu.suite.select import Selection as Selection
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.suite.cases": "AREAS Case NotClaimed NotHere Search case refused",
            "portagpu.suite.engine": "ConformOptions conform list_cases",
            "portagpu.suite.select": "Selection",
        },
    )
