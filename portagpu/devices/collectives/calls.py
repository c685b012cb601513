"""The calls of collectives: what each rank states of its own, and how those of ranks differ.

A call is taken from the tensors of a :class:`~portagpu.devices.collectives.checked.CheckedGroup`'s
method, or from a hook of torch's process groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_IN_PLACE: Final = frozenset({"all_reduce", "broadcast", "reduce", "scatter"})
"""Gloo writes the result into the memory from the tensor's first element on, gaps or not."""
_OF_OUTPUT: Final = frozenset({"SCATTER"})
"""Collectives whose input exists on one rank alone."""
_NOT_OF_EVERY_RANK: Final = frozenset({"SEND", "RECV", "SPLIT", "NEW_WINDOW", "UNKNOWN"})
"""Calls in which the ranks of a group do different things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The call of one rank: the properties that the ranks have to agree on.

    ``dtype``, ``shape`` and ``device`` (its type) are of the tensor that must be equal on every
    rank. ``root`` is a global rank. ``sends`` and ``receives`` are the rows of an all-to-all for
    each rank.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    device: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    sends: tuple[int, ...] | None = None
    receives: tuple[int, ...] | None = None
    gaps: bool = False
    """Whether the result belongs into a tensor whose elements have gaps or share memory, which no
    library writes rightly. It may differ between the ranks."""

    def __str__(self) -> str:
        """ "all_reduce(SUM) of float32[4]", "broadcast from 0 of int64[]"."""
        text = self.name + (f"({self.reduce_op})" if self.reduce_op else "")
        if self.root is not None:
            text += f" with root {self.root}"
        if self.dtype is not None:
            text += f" of {self.dtype}{list(self.shape or ())} on {self.device}"
        if self.sends is not None:
            text += f" sending {list(self.sends)}"
        return text


def call_of_tensor(
    name: str, tensor: torch.Tensor, *, op: Any = None, root: int | None = None
) -> Call:
    return Call(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        device=tensor.device.type,
        # an op with a factor is an object, which says in ``op`` what it is
        reduce_op=None if op is None else str(getattr(op, "op", op)).rpartition(".")[2],
        root=root,
        gaps=name in _IN_PLACE
        and tensor.layout == torch.strided
        and not torch.ops.aten.is_non_overlapping_and_dense(tensor),
    )


def call_of_hook(arguments: Any, ranks: Sequence[int]) -> Call | None:
    """The call that torch's ``PreHookArgs`` describe; None for what is not compared.

    Sources: torch 2.15's ``c10d/Hooks.hpp`` and ``_C/_distributed_c10d.pyi`` (``PreHookArgs``,
    ``HookOpName``). The arguments hold no reduce op and no splits, so these are not compared.
    ``ranks`` are the global ranks of the group, by which its root is named.
    """
    name = str(arguments.name).rpartition(".")[2]
    if name in _NOT_OF_EVERY_RANK:
        return None
    tensors: Sequence[torch.Tensor] = (
        arguments.output_tensors if name in _OF_OUTPUT else arguments.input_tensors
    )
    shape: tuple[int, ...] | None = None
    sends = receives = None
    if name == "ALLTOALL":
        sends = tuple(each.numel() for each in arguments.input_tensors)
        receives = tuple(each.numel() for each in arguments.output_tensors)
    elif name == "ALLTOALL_BASE":
        # the first dimension is what is split, and may differ between ranks
        shape = tuple(tensors[0].shape[1:])
    elif len(tensors) == 1:
        shape = tuple(tensors[0].shape)
    elif tensors:
        shape = tuple(each.numel() for each in tensors)
    dtypes = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in tensors)
    root = int(arguments.root)
    return Call(
        name=name.lower(),
        dtype=" and ".join(dtypes) or None,
        shape=shape,
        device=tensors[0].device.type if tensors else None,
        root=ranks[root] if 0 <= root < len(ranks) else None,
        sends=sends,
        receives=receives,
    )


def disagreement(calls: dict[int, Call]) -> str:
    """One sentence that names both sides where the calls of the ranks differ, else nothing.

    The rank that differs from the majority comes first.
    """
    plain = {
        rank: replace(call, sends=None, receives=None, gaps=False) for rank, call in calls.items()
    }
    majority = max(plain.values(), key=list(plain.values()).count)
    for rank, call in plain.items():
        if call != majority:
            other = next(each for each, theirs in plain.items() if theirs == majority)
            return f"rank {rank} called {calls[rank]}, and rank {other} called {calls[other]}"
    for here, (sender, call) in enumerate(calls.items()):
        for there, (receiver, theirs) in enumerate(calls.items()):
            if call.sends is None or theirs.receives is None:
                continue
            if call.sends[there] != theirs.receives[here]:
                return (
                    f"rank {sender} sends {call.sends[there]} rows to rank {receiver} in "
                    f"{call.name}, and rank {receiver} receives {theirs.receives[here]}"
                )
    return ""
