"""Portable kernels in Triton: one source each, for every GPU that Triton supports.

Public functions take and return torch tensors. Where Triton cannot run they raise
:class:`portagpu.Unsupported` with one line. :mod:`portagpu.kernels.reference` has the same
functions in torch. Importing this package imports neither torch nor triton.
"""

from __future__ import annotations

from portagpu.kernels.ops import (
    copy,
    matmul,
    quantize_fp8,
    rms_norm,
    softmax,
    sum,  # noqa: A004 - torch's name
    triad,
)
from portagpu.kernels.optimiser import adamw_step
from portagpu.kernels.plan import Config, Limits
from portagpu.kernels.tuning import NoConfig, tune

__all__ = [
    "Config",
    "Limits",
    "NoConfig",
    "adamw_step",
    "copy",
    "matmul",
    "quantize_fp8",
    "rms_norm",
    "softmax",
    "sum",
    "triad",
    "tune",
]
