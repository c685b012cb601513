"""The time that a communication library itself estimates for a collective.

torch 2.13 asks NCCL 2.22 and newer with ``ncclGroupSimulateEnd`` (``_time_estimator`` of
``torch/distributed/distributed_c10d.py``): nothing is sent. The library tells the time and neither
the algorithm nor the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from portagpu.base.errors import Unsupported
from portagpu.devices.collectives.torch_names import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from collections.abc import Callable

_ITEM_BYTES = 2


def estimated_time_us(
    operation: str,
    size_bytes: int,
    device: torch.device | None,
    group: dist.ProcessGroup | None = None,
) -> float:
    """The library's estimate in microseconds, for bfloat16 tensors that are not read or written.

    Raises Unsupported, with the reason, where there is no group or its library does not estimate.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise Unsupported("the library's own answer needs a process group: initialise one first")
    from torch.distributed import distributed_c10d as c10d

    place = device or torch.device("cpu")
    whose = group if group is not None else c10d._get_default_group()
    library = whose._get_backend(place)
    if not getattr(library, "supports_time_estimate", False):
        raise Unsupported(
            f"the library's own answer is not available: {dist.get_backend(group)} estimates no "
            "times through this torch"
        )
    call = _call(operation, size_bytes, place, group)
    with c10d._time_estimator(group, place) as estimate:
        call()
    found = estimate.estimated_time
    if not found or found <= 0:
        raise Unsupported(f"the library estimated no time for {operation}")
    return float(found)


def _call(
    operation: str, size_bytes: int, place: torch.device, group: dist.ProcessGroup | None
) -> Callable[[], object]:
    ranks = dist.get_world_size(group)
    whole = max(ranks, size_bytes // _ITEM_BYTES // ranks * ranks)
    tensor = torch.empty(whole, dtype=torch.bfloat16, device=place)
    part = tensor[: whole // ranks]
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "all_gather": lambda: all_gather_single(tensor, part.clone(), group=group),
        "reduce_scatter": lambda: reduce_scatter_single(part.clone(), tensor, group=group),
        "broadcast": lambda: dist.broadcast(tensor, group=group, group_src=0),
        "reduce": lambda: dist.reduce(tensor, group=group, group_dst=0),
    }
    if operation not in calls:
        raise Unsupported(f"the library's own answer covers {', '.join(calls)}, not {operation}")
    return calls[operation]
