"""Portable kernels in Triton: one source each, for every GPU that Triton supports.

Public functions take and return torch tensors. Where Triton cannot run they raise
:class:`portagpu.Unsupported` with one line. :mod:`portagpu.kernels.reference` has the same
functions in torch. Importing this package imports neither torch nor triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.lazy import lazy_names

if TYPE_CHECKING:
    from portagpu.kernels.ops import copy as copy
    from portagpu.kernels.ops import matmul as matmul
    from portagpu.kernels.ops import quantize_fp8 as quantize_fp8
    from portagpu.kernels.ops import rms_norm as rms_norm
    from portagpu.kernels.ops import softmax as softmax
    from portagpu.kernels.ops import sum as sum  # noqa: A004 - torch's name
    from portagpu.kernels.ops import triad as triad
    from portagpu.kernels.optimiser import adamw_step as adamw_step
    from portagpu.kernels.plan import Config as Config
    from portagpu.kernels.plan import Limits as Limits
    from portagpu.kernels.tuning import NoConfig as NoConfig
    from portagpu.kernels.tuning import tune as tune
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "portagpu.kernels.ops": "copy matmul quantize_fp8 rms_norm softmax sum triad",
            "portagpu.kernels.optimiser": "adamw_step",
            "portagpu.kernels.plan": "Config Limits",
            "portagpu.kernels.tuning": "NoConfig tune",
        },
    )
