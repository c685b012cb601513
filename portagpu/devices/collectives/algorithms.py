"""Ways to perform a collective: the library's own call, compositions of its calls, and the way that
a profile found to be the fastest. Needs torch.

Every way leaves what the library's own call leaves; a sum may be added up in another order. A way
is a generator of rounds: it yields the works of calls that run at the same time, and continues when
they are done. All ranks take the same way. Every way has a name that profiles keep.

Outside of the sizes that a profile measured, and for tensors, dtypes and reductions that were not
measured, its way is the library's own call.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from portagpu.devices.collectives.helpers import all_gather_single, reduce_scatter_single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from portagpu.devices.collectives.annotated import CollectiveMarks
    from portagpu.devices.collectives.buckets import BucketChoice
    from portagpu.devices.collectives.tuning import Profile


if TYPE_CHECKING:
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


_SUM: Final = dist.ReduceOp.SUM
_NOT_MARKED: Final = nullcontext()
_ONE_ROUND: Final = frozenset({DEFAULT, "chunks-2", "chunks-4"})
"""Ways of all_reduce that begin all their calls at once, so that DDP's hook can take them."""


class TunedGroup:
    """The collectives of one group by a profile; ``portagpu.backend().comm.tuned`` makes it.

    Every rank of the group has the same profile. Names, tensors and meanings are those of
    ``torch.distributed``; roots are ranks of the group. With ``async_op`` a call returns a work
    with ``wait()``. A composition of several rounds begins its later ones in ``wait()``, so all
    ranks wait for their works in the same order. Settings of a library that a profile names are
    those of the environment, which this class does not change: there it calls the library.
    """

    def __init__(
        self,
        profile: Profile,
        group: dist.ProcessGroup | None,
        ranks: int,
        nodes: int = 1,
        marks: CollectiveMarks | None = None,
    ) -> None:
        profile.check_ranks(ranks, nodes)
        for entry in profile.entries:
            for each in entry.ranges:
                if each.candidate.way not in WAYS[entry.operation]:
                    raise ValueError(
                        f"the profile takes {each.candidate.way!r} for {entry.operation}, which "
                        "this portagpu does not have: run portagpu collectives tune again"
                    )
        self.profile = profile
        self.group = group
        self._ranks, self._nodes = ranks, nodes
        self._marks = marks

    def way(self, operation: str, size_bytes: int, dtype: torch.dtype = torch.float32) -> str:
        """The name of the way in which a collective of that size is done: "call" is the library's.

        ``size_bytes`` is S of :mod:`portagpu.facts.nccl_tests.model`.
        """
        name = str(dtype).removeprefix("torch.")
        entry = self.profile.find(operation, self._ranks, self._nodes, name)
        found = entry.range_of(size_bytes) if entry is not None else None
        return DEFAULT if found is None else found.candidate.way

    def all_reduce(self, tensor: torch.Tensor, op: Any = _SUM, async_op: bool = False) -> Any:
        """``torch.distributed.all_reduce``; the library's call for all but SUM."""
        with self._around("all_reduce", [tensor]):
            way = self._way("all_reduce", tensor, op=op)
            if way == DEFAULT:
                return dist.all_reduce(tensor, op=op, group=self.group, async_op=async_op)
            return self._do(
                "all_reduce", way, Task(output=tensor, input=tensor, **self._all), async_op
            )

    def all_reduce_many(
        self, tensors: Sequence[torch.Tensor], op: Any = _SUM, async_op: bool = False
    ) -> Pending | None:
        """``all_reduce`` of every tensor of a list, of one dtype and device.

        Tensors that differ in these, or are not contiguous, are reduced one after another.
        """
        if not tensors:
            return None
        first = tensors[0]
        same_on_all_ranks = all(
            each.dtype == first.dtype and each.device == first.device and each.is_contiguous()
            for each in tensors
        )
        size_bytes = sum(each.nbytes for each in tensors)
        way = DEFAULT
        if same_on_all_ranks and op == _SUM and all(each.numel() for each in tensors):
            way = self.way("all_reduce_many", size_bytes, first.dtype)
        task = Task(output=first, input=first, tensors=tensors, op=op, group=self.group)
        with self._around("all_reduce_many", tensors):
            return self._do("all_reduce_many", way, task, async_op)

    def all_gather_into_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, async_op: bool = False
    ) -> Any:
        """``torch.distributed.all_gather_into_tensor``."""
        with self._around("all_gather_into_tensor", [input_tensor]):
            way = self._way("all_gather", output_tensor, input_tensor)
            if way == DEFAULT or output_tensor.numel() != self._ranks * input_tensor.numel():
                return all_gather_single(
                    output_tensor, input_tensor, group=self.group, async_op=async_op
                )
            task = Task(output=output_tensor, input=input_tensor, **self._all)
            return self._do("all_gather", way, task, async_op)

    all_gather_single = all_gather_into_tensor
    """torch's name since 2.13."""

    def reduce_scatter_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002 - torch's name
        op: Any = _SUM,
        async_op: bool = False,
    ) -> Any:
        """``torch.distributed.reduce_scatter_tensor``; the library's call for all but SUM."""
        with self._around("reduce_scatter_tensor", [input]):
            way = self._way("reduce_scatter", input, output, op=op)
            if way == DEFAULT or input.numel() != self._ranks * output.numel():
                return reduce_scatter_single(
                    output, input, op=op, group=self.group, async_op=async_op
                )
            task = Task(output=output, input=input, **self._all)
            return self._do("reduce_scatter", way, task, async_op)

    reduce_scatter_single = reduce_scatter_tensor
    """torch's name since 2.13."""

    def broadcast(self, tensor: torch.Tensor, group_src: int = 0, async_op: bool = False) -> Any:
        """``torch.distributed.broadcast`` from the rank ``group_src`` of the group."""
        with self._around("broadcast", [tensor]):
            way = self._way("broadcast", tensor)
            if way == DEFAULT:
                return dist.broadcast(
                    tensor, group=self.group, group_src=group_src, async_op=async_op
                )
            task = Task(output=tensor, input=tensor, root=group_src, **self._all)
            return self._do("broadcast", way, task, async_op)

    def comm_hook(self, state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """A hook for DDP that averages gradients: ``ddp.register_comm_hook(None, comm.comm_hook)``.

        It takes compositions that begin at once, and else calls the library: a second round would
        begin at another moment on each rank.
        """
        del state
        tensor = bucket.buffer().div_(self._ranks)
        way = self._way("all_reduce", tensor)
        task = Task(output=tensor, input=tensor, **self._all)
        with self._around("all_reduce", [tensor]):
            (works,) = WAYS["all_reduce"][way if way in _ONE_ROUND else DEFAULT](task)
        futures: list[torch.futures.Future[Any]] = [work.get_future() for work in works]
        if len(futures) == 1:
            # what NCCL's future holds is a list of one tensor
            return futures[0].then(lambda _: tensor)
        return torch.futures.collect_all(futures).then(lambda _: tensor)

    def choose_buckets(
        self, parameters: Sequence[torch.Tensor], backward_s: float, *, hook: bool = False
    ) -> BucketChoice:
        """The ``bucket_cap_mb`` for DDP: ``choice.best.cap_mib``, where None is torch's default.

        ``backward_s`` is the time of a backward pass without communication, in seconds; ``hook``
        says that DDP has :meth:`comm_hook`. Raises ValueError for parameters of several dtypes, and
        where the profile has too few sizes of theirs.
        """
        trained = [each for each in parameters if each.requires_grad]
        dtypes = {str(each.dtype).removeprefix("torch.") for each in trained}
        if len(dtypes) != 1:
            raise ValueError(
                f"bucket sizes are for parameters of one dtype, not {sorted(dtypes) or 'none'}"
            )
        sizes = [each.nbytes for each in trained]
        return self.profile.choose_buckets(
            sizes, 1e6 * backward_s, self._ranks, self._nodes, dtype=dtypes.pop(), hook=hook
        )

    def _around(
        self, operation: str, tensors: Sequence[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """A block for the profilers that listen; ``tensors`` are the inputs on this rank."""
        if self._marks is None or not self._marks.listens():
            return _NOT_MARKED
        return self._marks.around(operation, tensors)

    @property
    def _all(self) -> dict[str, Any]:
        return {"group": self.group}

    def _way(
        self, operation: str, whole: torch.Tensor, *others: torch.Tensor, op: Any = _SUM
    ) -> str:
        """The way for tensors that compositions can take, else the library's own call."""
        plain = whole.numel() > 0 and all(
            each.is_contiguous() and each.dtype == whole.dtype for each in (whole, *others)
        )
        if not plain or op != _SUM:
            return DEFAULT
        return self.way(operation, whole.nbytes, whole.dtype)

    def _do(self, operation: str, way: str, task: Task, async_op: bool) -> Pending | None:
        if async_op:
            return Pending(WAYS[operation][way](task))
        perform(operation, way, task)
        return None


# DDP compares annotations with types, and refuses those that are text
TunedGroup.comm_hook.__annotations__.clear()
