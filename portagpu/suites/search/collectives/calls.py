"""torch's collectives on buffers, and portagpu's own: each starts the call and gives its work.

``collectives/random-programs`` asks a communication library for all of them. What a library may
refuse is right where it does not (:func:`is_claimed`). It need not refuse it: torch's own process
group serves the calls, which PortaGPU does not wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from portagpu.suites.search.collectives import model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from portagpu.devices.collectives.comm import Comm

    Contents = Callable[[model.Exchange, int], list[model.Content]]
    """What the model says is in the buffers of a rank, by its position in the group."""
    Start = Callable[[list[torch.Tensor], "Place"], Any]
    """Starts a call on the buffers of its contents, and gives its work."""

CHECKED: Final = frozenset(
    {
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "gather",
        "scatter",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "all_to_all_single",
    }
)
"""Calls that checked groups have too."""
HELPERS: Final = frozenset(
    {
        "all_reduce_wider",
        "all_reduce_with_nan",
        "broadcast_bytes",
        "all_gather_bytes",
        "all_to_all_bytes",
        "all_reduce_tuned",
        "broadcast_tuned",
        "all_gather_tuned",
        "reduce_scatter_tuned",
    }
)
"""portagpu's own: they have returned when they are done."""
EACH_PART: Final = frozenset(
    {
        "scatter",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "reduce_scatter_tuned",
        "reduce_scatter_functional",
        "all_to_all",
        "all_to_all_single",
        "all_to_all_bytes",
    }
)
"""Calls whose input has a part for each position."""
FLOATS: Final = ("float32", "float64", "float16", "bfloat16")
STRIDED: Final = frozenset({"transposed", "apart"})
"""Shapes of tensors that are not contiguous, which a library may refuse."""
CLAIMED: Final = (*FLOATS, "int64")
"""No library refuses them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call happens: the group as torch has it, its ranks, and this rank's position.

    ``root`` is a position. ``by_position`` names roots to torch by it, and not by the rank.
    """

    group: Any
    ranks: Sequence[int]
    position: int
    root: int = 0
    op: str = "SUM"
    asynchronous: bool = False
    by_position: bool = False
    tag: int = 0
    checked: Any = None
    """The ``CheckedGroup`` (``devices.collectives.checked``) of a call that is to be checked."""
    way: str = ""
    """One of :mod:`portagpu.devices.collectives.algorithms`, for calls that are tuned."""
    sends: Sequence[int] | None = None
    receives: Sequence[int] | None = None

    @property
    def how(self) -> dict[str, Any]:
        """Arguments of every call."""
        group = {} if self.checked is not None else {"group": self.group}
        return group | {"async_op": self.asynchronous}

    @property
    def api(self) -> Any:
        """What has the calls under torch's names: ``torch.distributed``, or the checked group."""
        return dist if self.checked is None else self.checked

    @property
    def next_position(self) -> int:
        """The position after the root."""
        return (self.root + 1) % len(self.ranks)

    @property
    def reduction(self) -> Any:
        """torch's op."""
        return getattr(dist.ReduceOp, self.op)

    def peer(self, name: str, position: int) -> dict[str, Any]:
        """The argument that names a position: ``src=4`` or ``group_src=1``."""
        if self.by_position:
            return {f"group_{name}": position}
        return {name: self.ranks[position]}


def _all_reduce(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.all_reduce(t[0], op=at.reduction, **at.how)


def _reduce(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.reduce(t[0], op=at.reduction, **at.peer("dst", at.root), **at.how)


def _broadcast(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.broadcast(t[0], **at.peer("src", at.root), **at.how)


def _all_gather(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.all_gather(t[1:], t[0], **at.how)


def _all_gather_single(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.all_gather_into_tensor(t[-1], _own_part(t, at), **at.how)


def _all_gather_renamed(t: list[torch.Tensor], at: Place) -> Any:
    call = getattr(at.api, "all_gather_single", None) or at.api.all_gather_into_tensor
    return call(t[-1], _own_part(t, at), **at.how)


def _own_part(t: list[torch.Tensor], at: Place) -> torch.Tensor:
    """The first tensor, or this position's part of the only one."""
    if len(t) > 1:
        return t[0]
    rows = len(t[0]) // len(at.ranks)
    return t[0][rows * at.position : rows * (at.position + 1)]


def _gather(t: list[torch.Tensor], at: Place) -> Any:
    # in place the root's input is an output
    in_place = at.position == at.root and len(t) == len(at.ranks)
    given, outputs = (t[at.position], t) if in_place else (t[0], t[1:])
    return at.api.gather(given, outputs or None, **at.peer("dst", at.root), **at.how)


def _scatter(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.scatter(t[0], t[1:] or None, **at.peer("src", at.root), **at.how)


def _reduce_scatter(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.reduce_scatter(t[0], t[1:], op=at.reduction, **at.how)


def _reduce_scatter_single(t: list[torch.Tensor], at: Place) -> Any:
    return at.api.reduce_scatter_tensor(_own_part(t, at), t[-1], op=at.reduction, **at.how)


def _reduce_scatter_renamed(t: list[torch.Tensor], at: Place) -> Any:
    call = getattr(at.api, "reduce_scatter_single", None) or at.api.reduce_scatter_tensor
    return call(_own_part(t, at), t[-1], op=at.reduction, **at.how)


def _reduce_scatter_functional(t: list[torch.Tensor], at: Place) -> Any:
    """That of ``torch.distributed.tensor``, which gives a new tensor; done when it returns."""
    from torch.distributed import _functional_collectives as functional

    group: Any = dist.group.WORLD if at.group is None else at.group
    found = functional.reduce_scatter_tensor(t[-1], at.op.lower(), 0, group)
    t[0].copy_(functional.wait_tensor(found))


def _all_to_all(t: list[torch.Tensor], at: Place) -> Any:
    half = len(t) // 2
    return at.api.all_to_all(t[half:], t[:half], **at.how)


def _all_to_all_single(t: list[torch.Tensor], at: Place) -> Any:
    if at.sends is None:
        return at.api.all_to_all_single(t[1], t[0], **at.how)
    return at.api.all_to_all_single(t[1], t[0], list(at.receives or ()), list(at.sends), **at.how)


def _message(t: list[torch.Tensor], at: Place) -> Any:
    sends = at.position == at.root
    other = at.peer("dst", at.next_position) if sends else at.peer("src", at.root)
    name = ("isend" if sends else "irecv") if at.asynchronous else ("send" if sends else "recv")
    work = getattr(dist, name)(t[0], group=at.group, tag=at.tag, **other)
    return work if at.asynchronous else None


def _ring(t: list[torch.Tensor], at: Place) -> Any:
    n = len(at.ranks)
    peers = (at.position + at.root) % n, (at.position - at.root) % n
    ops = [
        dist.P2POp(call, tensor, group=at.group, tag=at.tag, **_peer_of_batch(at, peer))
        for call, tensor, peer in zip((dist.isend, dist.irecv), t, peers, strict=True)
    ]
    return All(dist.batch_isend_irecv(ops))


def _peer_of_batch(at: Place, position: int) -> dict[str, int]:
    return {"group_peer": position} if at.by_position else {"peer": at.ranks[position]}


@dataclass(frozen=True, slots=True)
class All:
    """Several works as one."""

    works: Sequence[Any]

    def wait(self) -> None:
        """Wait for each."""
        for each in self.works:
            each.wait()


def _all_reduce_wider(t: list[torch.Tensor], at: Place) -> Any:
    from portagpu.devices.collectives import helpers

    helpers.all_reduce_wider(t[0], at.reduction, at.group)


def _all_reduce_with_nan(t: list[torch.Tensor], at: Place) -> Any:
    from portagpu.devices.collectives import helpers

    helpers.all_reduce_with_nan(t[0], at.reduction, at.group)


def _broadcast_bytes(t: list[torch.Tensor], at: Place) -> Any:
    from portagpu.devices.collectives import helpers

    helpers.broadcast_bytes(t[0], at.ranks[at.root], at.group)


def _all_gather_bytes(t: list[torch.Tensor], at: Place) -> Any:
    from portagpu.devices.collectives import helpers

    helpers.all_gather_bytes(t[-1], _own_part(t, at), at.group)


def _all_to_all_bytes(t: list[torch.Tensor], at: Place) -> Any:
    from portagpu.devices.collectives import helpers

    helpers.all_to_all_bytes(t[1], t[0], at.receives, at.sends, at.group)


def _tuned(operation: str) -> Callable[[list[torch.Tensor], Place], None]:
    """The operation in the place's way, as ``TunedGroup`` does it.

    The output is the first tensor, or the second where the first is an input.
    """

    def call(t: list[torch.Tensor], at: Place) -> None:
        from portagpu.devices.collectives.algorithms import Task, perform

        output, read = t[::-1] if operation == "all_gather" else (t[0], t[-1])
        perform(operation, at.way, Task(output=output, input=read, group=at.group, root=at.root))

    return call


CALLS: Final[Mapping[str, tuple[Contents, Start]]] = {
    "all_reduce": (model.all_reduce, _all_reduce),
    "reduce": (model.reduce_to, _reduce),
    "broadcast": (model.broadcast, _broadcast),
    "all_gather": (model.all_gather, _all_gather),
    "all_gather_into_tensor": (model.all_gather_single, _all_gather_single),
    "all_gather_single": (model.all_gather_single, _all_gather_renamed),
    "gather": (model.gather, _gather),
    "scatter": (model.scatter, _scatter),
    "reduce_scatter": (model.reduce_scatter, _reduce_scatter),
    "reduce_scatter_tensor": (model.reduce_scatter_single, _reduce_scatter_single),
    "reduce_scatter_single": (model.reduce_scatter_single, _reduce_scatter_renamed),
    "reduce_scatter_functional": (model.reduce_scatter_single, _reduce_scatter_functional),
    "all_to_all": (model.all_to_all, _all_to_all),
    "all_to_all_single": (model.all_to_all_single, _all_to_all_single),
    "message": (model.message, _message),
    "ring": (model.ring, _ring),
    "all_reduce_wider": (model.all_reduce, _all_reduce_wider),
    "all_reduce_with_nan": (model.all_reduce, _all_reduce_with_nan),
    "broadcast_bytes": (model.broadcast, _broadcast_bytes),
    "all_gather_bytes": (model.all_gather_single, _all_gather_bytes),
    "all_to_all_bytes": (model.all_to_all_single, _all_to_all_bytes),
    "all_reduce_tuned": (model.all_reduce, _tuned("all_reduce")),
    "broadcast_tuned": (model.broadcast, _tuned("broadcast")),
    "all_gather_tuned": (model.all_gather_single, _tuned("all_gather")),
    "reduce_scatter_tuned": (model.reduce_scatter_single, _tuned("reduce_scatter")),
}
"""By a call's name: what the model says of it, and what starts it."""
REDUCES: Final = frozenset(name for name in CALLS if "reduce" in name)


def is_claimed(comm: Comm, name: str, dtype: str, op: str, shape: str, *, in_place: bool) -> bool:
    """Whether the library has to do the call; else it may refuse it on every rank."""
    if name in HELPERS:
        return True
    if name == "all_to_all" or shape in STRIDED or dtype not in CLAIMED:
        return False
    if name not in REDUCES:
        return True
    if in_place:
        return False
    return op in comm.reduce_ops if dtype in FLOATS else op == "SUM"
