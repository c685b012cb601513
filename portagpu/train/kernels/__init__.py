"""Portable kernels in Triton: one source each, for every GPU that Triton supports.

Public functions take and return torch tensors. Where Triton cannot run they raise
:class:`portagpu.Unsupported` with one line. ``portagpu.kernels.reference`` has the same functions
    in torch, and ``portagpu.kernels.cpp`` kernels in C++. Importing this package imports neither
    torch nor triton.
"""

from portagpu.base.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__spec__)
