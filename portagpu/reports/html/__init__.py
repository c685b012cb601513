"""Runs as one self-contained HTML file: no font, no request.

Its content security policy forbids every request, so a report can be mailed and opened anywhere.
One script, which the policy names by its hash, adds filters and search. Without it a page of one
run has all of its results, and a page of several runs all but its list of checks.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
