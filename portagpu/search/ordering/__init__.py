"""Streams, events and graphs as a partial order: a model, and programs of kernels over it.

Orders are judged while work is in flight, which an event behind that work proves: it is asked
before and after the calls in question. Work that was over too early proves nothing: the program
runs again with longer work, and counts as not judged if no length is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.search.ordering.area import AREA as AREA
    from portagpu.search.ordering.area import Ordering as Ordering
    from portagpu.search.ordering.kernels import Kernels as Kernels
    from portagpu.search.ordering.kernels import TorchKernels as TorchKernels
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.search.ordering.area": "AREA Ordering",
            "portagpu.search.ordering.kernels": "Kernels TorchKernels",
        },
    )
