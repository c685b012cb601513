"""Seeded random programs: what they should give, what they give, and the smallest that differs.

An area (:mod:`portagpu.suites.search.area`) has a model of one part of the contract in plain
Python, and draws programs: lists of calls. :func:`portagpu.suites.search.engine.search` runs them
in forked processes until its time is over, shrinks the first that differs from the model, and
repeats it. The cases ``*/random-programs`` of the suite call it."""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
