"""torch's own memory trackers on the user's real module, without its memory.

``torch.distributed._tools.mem_tracker.MemTracker`` and ``fsdp2_mem_tracker.FSDPMemTracker`` follow
every tensor of a step that runs on fake tensors: shapes without data. They are internal to torch
and see what torch allocates: no context, no library's buffers, no fragmentation. A build of torch
without a GPU has no fake GPU, so the step runs as one of the CPU.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from portagpu.base.errors import MissingDependency, Unsupported
from portagpu.base.text import error_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """The peak of one step, in bytes, and how it divides by torch's names at that moment."""

    peak: int
    parts: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 1

    def disagreement(self, expected: float) -> float:
        """How far an estimate is from the tracker, as a share of the tracker's peak."""
        return expected / self.peak - 1


def track(
    build: Callable[[], torch.nn.Module],
    step: Callable[[torch.nn.Module], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    *,
    ranks: int = 1,
    shard: Callable[[torch.nn.Module, Any], object] | None = None,
) -> Tracked:
    """The peak memory of a step of training that runs on fake tensors.

    The second of two steps counts, when the optimiser has its state.

    :param build: makes the module
    :param step: makes the module's inputs and returns the loss, shape ()
    :param optimizer: makes the optimiser of the parameters
    :param ranks: fake ranks
    :param shard: gets the module and a mesh of ``ranks`` fake ranks, and calls ``fully_shard``; the
        result is then the memory of one of them
    :returns: the peak, in bytes
    :raises MissingDependency: without torch
    :raises Unsupported: if this torch has no trackers, or the module does not run on fake tensors
    :raises ValueError: if another process group is in use
    """
    try:
        import torch  # noqa: F401
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise MissingDependency("torch is not installed: pip install torch") from error
    with warnings.catch_warnings(), _mesh_of(ranks if shard else 0) as mesh:
        # of a fake tensor's pointer, which the trackers themselves read
        warnings.simplefilter("ignore")
        try:
            with FakeTensorMode() as mode:
                module = _fake(build, mode)
                if shard is not None:
                    shard(module, mesh)
                return _run(module, step, optimizer, ranks)
        except (MissingDependency, Unsupported):
            raise
        except Exception as error:
            raise Unsupported(
                f"the module does not run on fake tensors: {error_line(error)}"
            ) from error


def _run(
    module: torch.nn.Module,
    step: Callable[[torch.nn.Module], torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer] | None,
    ranks: int,
) -> Tracked:
    from torch.distributed.fsdp import FSDPModule

    stepper = None if optimizer is None else optimizer(module.parameters())
    tracker = _tracker(module, stepper, sharded=isinstance(module, FSDPModule))
    with tracker:
        for last in (False, True):
            # what the first step has made is there when the second begins
            step(module).backward()
            if stepper is not None:
                stepper.step()
                stepper.zero_grad()
            else:
                module.zero_grad()
            if not last:
                tracker.reset_mod_stats()
    snapshot = tracker.get_tracker_snapshot("peak")
    parts = {
        getattr(name, "value", str(name)): size
        for each in snapshot.values()
        for name, size in each.items()
        if size
    }
    return Tracked(peak=parts.pop("Total", 0), parts=parts, ranks=ranks)


def _tracker(
    module: torch.nn.Module, stepper: torch.optim.Optimizer | None, *, sharded: bool
) -> Any:
    try:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError as error:
        raise Unsupported(f"this torch has no memory trackers: {error_line(error)}") from error
    if sharded:
        return FSDPMemTracker(module, stepper)
    tracker = MemTracker()
    tracker.track_external(module, *([] if stepper is None else [stepper]))
    return tracker


def _fake(build: Callable[[], torch.nn.Module], mode: Any) -> torch.nn.Module:
    """The module with fake tensors of ``mode``; shared parameters stay shared.

    It is built on the meta device: a copy of a fake tensor would belong to a copy of its mode.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.device("meta"):
        module = build()
    made: dict[int, torch.Tensor] = {}
    for each in module.modules():
        tables: tuple[dict[str, Any], ...] = (each._parameters, each._buffers)
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    made.setdefault(id(tensor), _empty_like(tensor))
                    table[name] = made[id(tensor)]
    return module


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


@contextmanager
def _mesh_of(ranks: int) -> Iterator[Any]:
    """A mesh of fake ranks, of which this process is the first; None for 0 ranks."""
    if ranks == 0:
        yield None
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ValueError("a process group is in use: track a sharded module in a process without")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()
