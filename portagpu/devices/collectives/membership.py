"""What a rank knows of itself and the others after ``gpu.comm.init()``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from portagpu.devices.collectives.checked import CheckedGroup
    from portagpu.devices.collectives.comm import Comm
    from portagpu.devices.collectives.rendezvous import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This rank in its run. As a context manager it shuts down at the end of the block.

    That raises RankLost as :meth:`shutdown` does, where the block itself raises nothing: with ranks
    that have ended or are stopped. Of ranks that are only slow it warns.
    """

    rank: int
    world_size: int
    local_rank: int
    """Among the ranks of this machine."""
    local_world_size: int
    launcher: str
    """Who says so: "torchrun", "Slurm", "Open MPI", "MVAPICH", "MPI", "alone" or "arguments"."""
    where: str
    """Where the ranks met: host and port, a file, or "the given store"."""
    engine: str
    """What moves the tensors: of the engines that torch has for one name, the one that it built."""
    members: tuple[Member, ...]
    """Host, process and device of every rank, in order of rank."""
    checked: CheckedGroup | None
    """With ``checked=True`` the collectives that are compared between the ranks first."""
    checks_plain_calls: bool
    """Whether ``torch.distributed``'s own functions are compared too, over the group of all ranks:
    with ``checked=True`` where torch's groups have hooks (2.14 and newer)."""

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """What :meth:`portagpu.devices.collectives.comm.Comm.shutdown` does."""
        from portagpu.devices.collectives.init import shutdown

        shutdown(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # the others may be waiting for this rank inside a collective
        self.shutdown(10.0 if error is None else 0.0)


def engine_of(comm: Comm, group: Any) -> str:
    """The engine of ``group`` for the tensors of ``comm``, with the variables that choose it.

    It is the class of the object that torch built (``ProcessGroup._get_backend``), in the words of
    the vendor's table; a class that has no words stands for itself.
    """
    import torch

    engine = group._get_backend(torch.device(comm.device_type))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it
    engine = getattr(engine, "wrapped_pg", engine)
    name = type(engine).__name__
    chosen = [
        f"{variable}={os.environ[variable]}"
        for variable in comm.engine_variables
        if os.environ.get(variable)
    ]
    words = comm.engines.get(name, name)
    return f"{words}, with {', '.join(chosen)}" if chosen else words
