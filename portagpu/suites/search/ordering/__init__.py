"""Streams, events and graphs as a partial order: a model, and programs of kernels over it.

Orders are judged while work is in flight, which an event after that work proves: it is asked
before and after the calls in question. Work that was over too early proves nothing: the program
runs again with longer work, and counts as not judged if no length is enough.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
