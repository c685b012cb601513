"""Checks on ``torch.distributed``'s own calls, through the hooks of torch's process groups.

A pre-hook runs before each collective of a group, below the dispatcher, also for functional
collectives and under torch.compile. What it raises reaches the caller, and nothing is sent.
Sources: pytorch pull requests 186300 and 189363, and torch 2.15's ``c10d/Hooks.hpp`` and
``_C/_distributed_c10d.pyi`` (``PreHookArgs``, ``HookOpName``). torch 2.13 has no hooks. The
arguments hold no reduce op and no splits, so these are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.collectives.checked import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from portagpu.devices.collectives.checked import CheckedGroup

_HOOK_ID: Final = 0x706F727461
"""A number of our own: another hook of the group has another."""
_OF_OUTPUT: Final = frozenset({"SCATTER"})
"""Collectives whose input exists on one rank alone."""
_NOT_OF_ALL: Final = frozenset({"SEND", "RECV", "SPLIT", "NEW_WINDOW", "UNKNOWN"})
"""What not every rank of the group calls alike."""


def check_plain_calls(checked: CheckedGroup) -> Callable[[], None] | None:
    """Compare every collective of the group before it runs; call the result to end that.

    Call it on every rank at the same point. None where torch's groups have no hooks.
    """
    group: Any = checked.group
    if not hasattr(group, "register_pre_hook"):
        return None

    def compare(arguments: Any) -> None:
        call = call_of_hook(arguments, checked.ranks)
        if call is not None:
            checked.compare_plain_call(call)

    group.register_pre_hook(_HOOK_ID, compare)
    return lambda: group.unregister_pre_hook(_HOOK_ID)


def call_of_hook(arguments: Any, ranks: Sequence[int]) -> Call | None:
    """The call that torch's ``PreHookArgs`` describe; None for what is not compared.

    ``ranks`` are the global ranks of the group, by which its root is named.
    """
    name = str(arguments.name).rpartition(".")[2]
    if name in _NOT_OF_ALL:
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
