"""Machine code of every portable kernel for every architecture, built and inspected: no GPU needed.

What it shows is the badge ``compiled``: the compiler accepts the source, uses the matrix unit that
the architecture has, keeps its values in registers and fits shared memory. It shows nothing of
results or of speed.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
