"""Collectives as annotations with operation, bytes, dtype, group and sequence.

They are made where a profiler listens. The groups of ``gpu.comm`` annotate their own calls. Those
of torch's own functions need the hooks of torch's process groups (torch 2.14 and newer;
``c10d/Hooks.hpp``), which torch 2.13 lacks. torch's profiler knows as much of plain calls by itself
(``record_param_comms``). The names of the labels are those of
:data:`portagpu.facts.captures.labels.COLLECTIVE_LABELS`, with ``reduce_op`` and ``root`` where
known."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from portagpu.facts.captures.labels import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    import torch.distributed as dist

    from portagpu.facts.captures.labels import Label

    Block = Callable[[str, Mapping[str, Label], str], AbstractContextManager[Any]]

_HOOK_ID: Final = 0x706F727462
"""A number of our own: another hook of the group has another."""
_OPERATIONS: Final = {
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "all_reduce_coalesced",
    "ALLGATHER": "all_gather",
    "ALLGATHER_BASE": "all_gather_into_tensor",
    "ALLGATHER_COALESCED": "all_gather_coalesced",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_into_tensor_coalesced",
    "REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter_tensor_coalesced",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all_single",
}
"""torch's functions of the hooks' names; the others are the same in lower case."""
_NOT_MARKED: Final = frozenset({"SPLIT", "NEW_WINDOW", "UNKNOWN"})
_BETWEEN_TWO: Final = frozenset({"send", "recv"})


class _Open(threading.local):
    """What this thread has open: blocks of our own calls, and of hooks by torch's number."""

    own = 0

    def __init__(self) -> None:
        self.hooked: list[tuple[int, AbstractContextManager[Any]]] = []


_open: Final = _Open()


class CollectiveMarks:
    """The annotations of one group. ``listens`` and ``block`` are those of the device's handle."""

    def __init__(
        self, group: dist.ProcessGroup | None, listens: Callable[[], bool], block: Block
    ) -> None:
        import torch.distributed as dist

        found: Any = dist.group.WORLD if group is None else group
        self.listens = listens
        self._block = block
        self._group = found

    def around(
        self, operation: str, tensors: Sequence[torch.Tensor], **labels: Label
    ) -> AbstractContextManager[Any]:
        """A block around the call of a collective of ``tensors``, its inputs on this rank."""
        return self._own(operation, tensors, labels) if self.listens() else nullcontext()

    @contextmanager
    def _own(
        self, operation: str, tensors: Sequence[torch.Tensor], labels: dict[str, Label]
    ) -> Iterator[None]:
        _open.own += 1
        try:
            with self.block(operation, tensors, labels):
                yield
        finally:
            _open.own -= 1

    def block(
        self, operation: str, tensors: Sequence[torch.Tensor], labels: dict[str, Label]
    ) -> AbstractContextManager[Any]:
        """The block, whether or not anything listens."""
        found: dict[str, Label] = {}
        if tensors:
            dtypes = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in tensors)
            found["bytes"] = sum(each.nbytes for each in tensors)
            found["dtype"] = " and ".join(dtypes)
        found["group"] = str(self._group.group_name)
        found["group_size"] = int(self._group.size())
        if operation not in _BETWEEN_TWO and (sequence := self._sequence()) is not None:
            found["sequence"] = sequence
        return self._block(operation, found | labels, COLLECTIVE)

    def _sequence(self) -> int | None:
        """How many collectives the group has begun: the same number on all its ranks."""
        try:
            return int(self._group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):
            return None  # a library that does not count


def annotate_plain_calls(marks: CollectiveMarks) -> Callable[[], None] | None:
    """Annotate every collective of the group while something listens; call the result to end that.

    None where torch's groups have no hooks.
    """
    group: Any = marks._group
    if not hasattr(group, "register_pre_hook"):
        return None

    def begin(arguments: Any) -> None:
        while _open.hooked:  # of calls that raised, which have no second hook
            _open.hooked.pop()[1].__exit__(None, None, None)
        name = str(arguments.name).rpartition(".")[2]
        if name in _NOT_MARKED or _open.own or not marks.listens():
            return
        operation = _OPERATIONS.get(name, name.lower())
        # the input of a scatter is there on the root alone, and a receiver has none
        ours = name in ("SCATTER", "RECV") or not arguments.input_tensors
        tensors = arguments.output_tensors if ours else arguments.input_tensors
        block = marks.block(operation, tensors, {})
        block.__enter__()
        _open.hooked.append((int(arguments.op_id), block))

    def end(arguments: Any) -> None:
        if _open.hooked and _open.hooked[-1][0] == int(arguments.op_id):
            _open.hooked.pop()[1].__exit__(None, None, None)

    group.register_pre_hook(_HOOK_ID, begin)
    group.register_post_hook(_HOOK_ID, end)

    def stop() -> None:
        group.unregister_pre_hook(_HOOK_ID)
        group.unregister_post_hook(_HOOK_ID)

    return stop
