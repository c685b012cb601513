"""The conformance suite as a library: cases, and ``conform`` that runs them.

A case is a pytest function in ``matrix/conformance/test_<area>.py`` with an id, a sentence that
specifies it, and the capability that it needs. It runs in a child process with its own
configuration, so that no file of the user's project can change a verdict.
``docs/conformance.md`` says how to write one.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
