"""The sizes up to which torch's random numbers of two GPUs are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portagpu.devices.sizing import Sizing

if TYPE_CHECKING:
    from portagpu.devices.contract import Backend

BLOCK: Final = 256
"""Threads of a block in ATen's random kernels (``block_size_bound``, see launch_wave)."""


def launch_wave(sizing: Sizing) -> int:
    """Elements that one random kernel of ATen fills with a thread for each.

    Philox gives every thread a stream of its own. ATen launches a thread for each element, in
    blocks of 256, up to ``unit_count * (max_threads_per_unit // 256)`` blocks; beyond, threads take
    several elements each. Source: ``calc_execution_policy`` of pytorch v2.13.0,
    aten/src/ATen/native/cuda/DistributionTemplates.h. Raises ValueError for a device without warps,
    which this kernel does not run on.
    """
    if sizing.warp_size == 1:
        raise ValueError("a device without warps draws other random numbers, from the first on")
    return BLOCK * sizing.unit_count * (sizing.max_threads_per_unit // BLOCK)


def same_numbers_up_to(*devices: Backend | Sizing) -> int:
    """The largest tensor for which the same seed gives these GPUs the same random numbers.

    It is the smallest launch wave of them. It speaks of one call of a kernel that torch.rand,
    torch.randn and the like share, after the same calls before; larger tensors differ. It promises
    nothing for compiled code. To start two machines with the same numbers, draw on the CPU and
    copy. Raises ValueError for no device or a sizing without warps, and Unsupported for a device
    whose generator is another one, such as a CPU.
    """
    if not devices:
        raise ValueError("same_numbers_up_to compares devices: give at least one")
    return min(
        launch_wave(each) if isinstance(each, Sizing) else each.random_wave() for each in devices
    )
