"""The first launch of a kernel in a new process: compiled, or read from Triton's cache.

:func:`first_launch` runs in a child process, whose ``TRITON_CACHE_DIR`` says where the cache is.
"""

from __future__ import annotations

import time

_ROWS = 64
_COLUMNS = 1000


def first_launch(backend: str, index: int) -> float:
    """Seconds from the first call of a softmax until its result is there.

    What imports and the device's start take is over before. Raises ValueError where the result is
    further off than float32 rounds sums of this length.
    """
    import torch
    import triton  # noqa: F401 - a part of every process that launches

    from portagpu.devices import registry
    from portagpu.train import kernels

    gpu = registry.backend(backend, index)
    gpu.activate()
    x = torch.arange(_ROWS * _COLUMNS, device=gpu.device, dtype=torch.float32)
    x = (x % 31).reshape(_ROWS, _COLUMNS)
    gpu.synchronize()
    started = time.perf_counter()
    found = kernels.softmax(x)
    gpu.synchronize()
    seconds = time.perf_counter() - started
    right = x.double().cpu().softmax(-1)
    off = float((found.double().cpu() - right).abs().max() / right.max())
    if not off <= _COLUMNS * 2**-24:
        raise ValueError(f"the softmax of a first launch is off by {off:.2g} of its largest value")
    return seconds
