"""Ways to perform a collective: the library's own call, and compositions of its calls. Needs torch.

Every way leaves what the library's own call leaves; a sum may be added up in another order. A way
is a generator of rounds: it yields the works of calls that run at the same time, and continues when
they are done. All ranks take the same way. Every way has a name that profiles keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.devices.collectives.torch_names import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Round = Sequence[Any]
    """Works of torch.distributed."""
    Way = Callable[["Task"], Iterator[Round]]

DEFAULT: Final = "call"
"""The library's own call, one for each tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One collective: its contiguous tensors and its group.

    ``output`` is what is reduced or broadcast in place. ``input`` is the share of ``all_gather``
    and the whole of ``reduce_scatter``; ``tensors`` are those of ``all_reduce_many``. ``root`` is a
    rank of the group.
    """

    output: torch.Tensor
    input: torch.Tensor
    tensors: Sequence[torch.Tensor] = ()
    op: Any = dist.ReduceOp.SUM
    group: dist.ProcessGroup | None = None
    root: int = 0

    @property
    def ranks(self) -> int:
        """The size of the group."""
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return dist.get_rank(self.group)


def perform(operation: str, way: str, task: Task) -> None:
    """Do it, and return when it is done. Raises KeyError for a way that there is not."""
    for works in WAYS[operation][way](task):
        for work in works:
            work.wait()


class Pending:
    """A way that has begun. Its later rounds begin in :meth:`wait`.

    All ranks wait for their collectives in the same order, as they begin them in the same order.
    """

    def __init__(self, rounds: Iterator[Round]) -> None:
        self._rounds = rounds
        self._works: Round | None = next(rounds, None)

    def is_completed(self) -> bool:
        """Whether the last round is done; before :meth:`wait` that is unknown, and False."""
        return self._works is None

    def wait(self) -> bool:
        """Wait until the tensors have their result. Raises what the library raises."""
        while self._works is not None:
            for work in self._works:
                work.wait()
            self._works = next(self._rounds, None)
        return True


def _all_reduce(task: Task, tensor: torch.Tensor) -> Any:
    return dist.all_reduce(tensor, op=task.op, group=task.group, async_op=True)


def _all_gather(task: Task, output: torch.Tensor, share: torch.Tensor) -> Any:
    return all_gather_single(output, share, group=task.group, async_op=True)


def _broadcast(task: Task, tensor: torch.Tensor, root: int) -> Any:
    return dist.broadcast(tensor, group=task.group, group_src=root, async_op=True)


def _split(task: Task, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The part that every rank has an equal share of, and the rest, both flat."""
    flat = tensor.view(-1)
    even = flat.numel() // task.ranks * task.ranks
    return flat[:even], flat[even:]


def _sum(parts: torch.Tensor, output: torch.Tensor) -> None:
    """The sum over the first dimension, in the dtype of ``output``."""
    torch.sum(parts, dim=0, dtype=output.dtype, out=output)


def _reduce(task: Task) -> Iterator[Round]:
    yield [_all_reduce(task, task.output)]


def _reduce_in_chunks(count: int) -> Way:
    def way(task: Task) -> Iterator[Round]:
        yield [_all_reduce(task, part) for part in task.output.view(-1).chunk(count)]

    return way


def _reduce_by_shares(task: Task) -> Iterator[Round]:
    """reduce_scatter, then all_gather."""
    even, rest = _split(task, task.output)
    works = [_all_reduce(task, rest)] if rest.numel() else []
    if not even.numel():
        yield works
        return
    share = even.new_empty(even.numel() // task.ranks)
    works.append(reduce_scatter_single(share, even, op=task.op, group=task.group, async_op=True))
    yield works
    yield [_all_gather(task, even, share)]


def _reduce_by_exchange(task: Task) -> Iterator[Round]:
    """all_to_all, a sum on every rank, then all_gather."""
    even, rest = _split(task, task.output)
    works = [_all_reduce(task, rest)] if rest.numel() else []
    if not even.numel():
        yield works
        return
    parts = torch.empty_like(even)
    works.append(dist.all_to_all_single(parts, even, group=task.group, async_op=True))
    yield works
    share = even.new_empty(even.numel() // task.ranks)
    _sum(parts.view(task.ranks, -1), share)
    yield [_all_gather(task, even, share)]


def _reduce_by_gather(task: Task) -> Iterator[Round]:
    """all_gather, and a sum of everything on every rank."""
    flat = task.output.view(-1)
    parts = flat.new_empty(task.ranks * flat.numel())
    yield [_all_gather(task, parts, flat)]
    _sum(parts.view(task.ranks, -1), flat)


def _gather(task: Task) -> Iterator[Round]:
    yield [_all_gather(task, task.output, task.input)]


def _gather_list(task: Task) -> Iterator[Round]:
    parts = list(task.output.view(task.ranks, -1).unbind())
    yield [dist.all_gather(parts, task.input.view(-1), group=task.group, async_op=True)]


def _gather_by_broadcasts(task: Task) -> Iterator[Round]:
    """A broadcast from every rank, all at the same time."""
    parts = task.output.view(task.ranks, -1).unbind()
    parts[task.rank].copy_(task.input.view(-1))
    yield [_broadcast(task, part, root) for root, part in enumerate(parts)]


def _scatter_sums(task: Task) -> Iterator[Round]:
    yield [
        reduce_scatter_single(task.output, task.input, op=task.op, group=task.group, async_op=True)
    ]


def _scatter_by_reduce(task: Task) -> Iterator[Round]:
    """all_reduce of a copy, of which every rank keeps its share."""
    whole = task.input.clone().view(-1)
    yield [_all_reduce(task, whole)]
    task.output.view(-1).copy_(whole.view(task.ranks, -1)[task.rank])


def _scatter_by_exchange(task: Task) -> Iterator[Round]:
    """all_to_all, and a sum on every rank."""
    flat = task.input.view(-1)
    parts = torch.empty_like(flat)
    yield [dist.all_to_all_single(parts, flat, group=task.group, async_op=True)]
    _sum(parts.view(task.ranks, -1), task.output.view(-1))


def _send_to_all(task: Task) -> Iterator[Round]:
    yield [_broadcast(task, task.output, task.root)]


def _send_in_chunks(count: int) -> Way:
    def way(task: Task) -> Iterator[Round]:
        yield [_broadcast(task, part, task.root) for part in task.output.view(-1).chunk(count)]

    return way


def _send_by_shares(task: Task) -> Iterator[Round]:
    """scatter, then all_gather."""
    even, rest = _split(task, task.output)
    works = [_broadcast(task, rest, task.root)] if rest.numel() else []
    if not even.numel():
        yield works
        return
    parts = list(even.view(task.ranks, -1).unbind()) if task.rank == task.root else None
    share = even.new_empty(even.numel() // task.ranks)
    works.append(dist.scatter(share, parts, group=task.group, group_src=task.root, async_op=True))
    yield works
    yield [_all_gather(task, even, share)]


def _reduce_in_turn(task: Task) -> Iterator[Round]:
    for each in task.tensors:
        yield [_all_reduce(task, each)]


def _reduce_together(task: Task) -> Iterator[Round]:
    yield [_all_reduce(task, each) for each in task.tensors]


def _reduce_flat(task: Task) -> Iterator[Round]:
    """One all_reduce of a copy in which the tensors follow one another."""
    flat = torch.cat([each.view(-1) for each in task.tensors])
    yield [_all_reduce(task, flat)]
    sizes = [each.numel() for each in task.tensors]
    for each, part in zip(task.tensors, flat.split(sizes), strict=True):
        each.view(-1).copy_(part)


WAYS: Final[dict[str, dict[str, Way]]] = {
    "all_reduce": {
        DEFAULT: _reduce,
        "chunks-2": _reduce_in_chunks(2),
        "chunks-4": _reduce_in_chunks(4),
        "reduce_scatter+all_gather": _reduce_by_shares,
        "all_to_all+sum+all_gather": _reduce_by_exchange,
        "all_gather+sum": _reduce_by_gather,
    },
    "all_gather": {
        DEFAULT: _gather,
        "list": _gather_list,
        "broadcasts": _gather_by_broadcasts,
    },
    "reduce_scatter": {
        DEFAULT: _scatter_sums,
        "all_reduce+share": _scatter_by_reduce,
        "all_to_all+sum": _scatter_by_exchange,
    },
    "broadcast": {
        DEFAULT: _send_to_all,
        "chunks-2": _send_in_chunks(2),
        "chunks-4": _send_in_chunks(4),
        "scatter+all_gather": _send_by_shares,
    },
    "all_reduce_many": {
        DEFAULT: _reduce_in_turn,
        "together": _reduce_together,
        "flat": _reduce_flat,
    },
}
"""The ways of every operation by name. ``all_reduce_many`` reduces a list of tensors."""
ONLY_SUMS: Final = frozenset({"all_to_all+sum+all_gather", "all_gather+sum", "all_to_all+sum"})
"""Ways that add up themselves: for other reductions they are none."""
