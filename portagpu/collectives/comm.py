"""The communication library of a device, and torch's name for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    import torch.distributed as dist

    from portagpu.collectives.checked import CheckedGroup


@dataclass(frozen=True, slots=True)
class Comm:
    """The identity of a device's communication library.

    ``c10d_name`` is its name in ``torch.distributed``, which does not identify the vendor: RCCL is
    "nccl" there too. ``library`` and ``version`` name the actual library; an unknown version is
    None. A device without a library has :meth:`none`: calls that need one raise Unsupported.
    """

    c10d_name: str
    library: str
    version: str | None
    device_type: str
    """The type of ``torch.device`` of the tensors that it moves."""
    reduce_ops: frozenset[str] = frozenset()
    """Names of ``torch.distributed.ReduceOp`` that it supports for floating-point tensors."""
    local_env: Mapping[str, str] | None = None
    """Environment for ranks on this machine alone, for instance the loopback interface."""
    device_ids: Sequence[int] | None = None
    """``device_ids`` for DistributedDataParallel and ``barrier``; None on a CPU.

    It is a list: ``torch.distributed.barrier`` reads no other sequence.
    """

    @classmethod
    def none(cls, device_type: str) -> Comm:
        """The Comm of a device without a communication library."""
        return cls("", "none", None, device_type)

    def _need_library(self) -> None:
        if not self.c10d_name:
            raise Unsupported(
                f"no communication library moves {self.device_type} tensors: run one process, or "
                "reduce on the CPU"
            )

    def __post_init__(self) -> None:
        if self.device_ids is not None:
            object.__setattr__(self, "device_ids", list(self.device_ids))

    @property
    def output_device(self) -> int | None:
        """``output_device`` for DistributedDataParallel; None on a CPU."""
        return self.device_ids[0] if self.device_ids else None

    @property
    def device_id(self) -> torch.device | None:
        """``device_id`` for ``init_process_group`` and FSDP; None on a CPU.

        It binds the process group to the device, and creates its communicator at once.
        """
        if not self.device_ids:
            return None
        import torch

        return torch.device(self.device_type, self.device_ids[0])

    def get_backend(self, group: dist.ProcessGroup | None = None) -> str:
        """The name of the library that moves this device's tensors in ``group``: ``c10d_name``.

        ``torch.distributed.get_backend`` answers with all of a group's libraries: "nccl" is
        "cpu:gloo,cuda:nccl" there. Raises ValueError for a group that has none for this device,
        Unsupported for a device without a library, and what torch raises before
        ``init_process_group``.
        """
        self._need_library()
        from torch.distributed import distributed_c10d as c10d

        config = c10d.get_backend_config(group)
        libraries = c10d.BackendConfig(c10d.Backend(config)).get_device_backend_map()
        found = libraries.get(self.device_type)
        if found is None:
            raise ValueError(f"the group of {config} has no library for {self.device_type} tensors")
        return str(found)

    @property
    def init_string(self) -> str:
        """The ``backend`` for ``init_process_group``: CPU tensors have a library on every device.

        A bare "nccl" leaves CPU tensors without one; "cpu:gloo,cuda:nccl" does not. Where the
        device is the CPU it is the bare name, so that ``get_backend()`` answers with it. Raises
        Unsupported for a device without a library.
        """
        self._need_library()
        if self.device_type == "cpu":
            return self.c10d_name
        return f"cpu:gloo,{self.device_type}:{self.c10d_name}"

    def checked(
        self, group: dist.ProcessGroup | None = None, timeout_s: float = 60.0
    ) -> CheckedGroup:
        """The collectives of ``group`` (default: all ranks), compared between the ranks first.

        Call it on every rank of the group; see :class:`portagpu.collectives.checked.CheckedGroup`.
        Raises Unsupported for a device without a library.
        """
        self._need_library()
        from portagpu.collectives.checked import CheckedGroup

        return CheckedGroup(group, timeout_s)
