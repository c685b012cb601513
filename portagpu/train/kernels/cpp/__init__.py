"""Portable kernels in CUDA and HIP C++: one file each, over the words of ``portagpu.h``.

Importing this package imports neither torch nor cupy.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
