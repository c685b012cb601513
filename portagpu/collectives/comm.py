"""Which communication library a device uses, under which name torch knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist

    from portagpu.collectives.checked import Checked


@dataclass(frozen=True, slots=True)
class Comm:
    """The identity of a device's communication library.

    ``c10d_name`` is what ``torch.distributed`` calls it, which does not tell the vendor: RCCL is
    "nccl" there too. ``library`` and ``version`` name what really runs; an unknown version is None.
    """

    c10d_name: str
    library: str
    version: str | None
    device_type: str
    """The type of ``torch.device`` whose tensors it moves."""
    reduce_ops: frozenset[str] = frozenset()
    """Names of ``torch.distributed.ReduceOp`` that it claims for floating-point tensors."""
    local_env: Mapping[str, str] | None = None
    """Environment for ranks that all run on this machine, for instance the loopback interface."""
    device_ids: tuple[int, ...] | None = None
    """What DistributedDataParallel wants as ``device_ids``; None on a CPU."""

    @property
    def init_string(self) -> str:
        """The ``backend`` for ``init_process_group``: CPU tensors have a library on every device.

        A bare "nccl" leaves CPU tensors without one; "cpu:gloo,cuda:nccl" does not. Where the
        device is the CPU it is the bare name, so that ``get_backend()`` answers with it.
        """
        if self.device_type == "cpu":
            return self.c10d_name
        return f"cpu:gloo,{self.device_type}:{self.c10d_name}"

    def checked(self, group: dist.ProcessGroup | None = None, timeout_s: float = 60.0) -> Checked:
        """The collectives of ``group`` (default: all ranks), compared between the ranks first.

        Call it on every rank of the group; see :class:`portagpu.collectives.checked.Checked`.
        """
        from portagpu.collectives.checked import Checked

        return Checked(group, timeout_s)
