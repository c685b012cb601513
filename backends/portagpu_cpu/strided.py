"""Collectives of CPU tensors that are not contiguous: copied, and copied back when they are done.

Gloo takes as many elements as a tensor has from its first one on, whatever the strides are
(pytorch#192920, torch 2.13). Where a tensor has gaps, or another order than on another rank, the
result is wrong and nothing raises. NCCL and RCCL refuse such tensors.

The functions of ``torch.distributed`` call the methods of ``ProcessGroup`` that are replaced here,
in the whole process. What calls them from C++, as DDP and compiled code do, passes contiguous
tensors.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS: Final = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
}
"""Methods, and torch's functions that call them; some have two names, by torch's version.

What the first argument has is written, and what a second one has is read. Gloo makes copies itself
in some of them, for some layouts. Messages are refused with an error, as on GPUs."""


@cache
def make_contiguous() -> Callable[[], None]:
    """Replace those methods in this process, once; call the result to undo it, as a test does."""
    if not torch.distributed.is_available():
        return lambda: None
    from torch._C._distributed_c10d import ProcessGroup

    # what is in the class itself binds to a group again when it is put back
    before = {each: vars(ProcessGroup)[each] for each in METHODS if each in vars(ProcessGroup)}
    for name in before:
        setattr(ProcessGroup, name, _on_copies(getattr(ProcessGroup, name), METHODS[name]))

    def undo() -> None:
        for name, method in before.items():
            setattr(ProcessGroup, name, method)
        make_contiguous.cache_clear()

    return undo


def _on_copies(method: Any, function: str) -> Any:
    """The method, on contiguous copies where a tensor is not contiguous."""

    @wraps(method)
    def call(group: Any, *given: Any, **named: Any) -> Any:
        tensors = _tensors(given[:2])
        if all(each.is_contiguous() or each.device.type != "cpu" for each in tensors):
            return method(group, *given, **named)
        written = [each for each in _tensors(given[:1]) if not each.is_contiguous()]
        if any(torch._debug_has_internal_overlap(each) == 1 for each in written):
            raise ValueError(
                f"{function} would write several elements into the same memory: give "
                "tensor.contiguous(), and copy the result back"
            )
        copies = {id(each): each.contiguous() for each in tensors}
        work = method(group, *_with(given[:2], copies), *given[2:], **named)
        return _CopiedWork(work, [(each, copies[id(each)]) for each in written])

    return call


class _CopiedWork:
    """A work whose result is copied into the first tensor of each pair when it is done."""

    def __init__(self, work: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._work = work
        self._pairs = pairs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def wait(self, *given: Any, **named: Any) -> Any:
        found = self._work.wait(*given, **named)
        self._copy_back()
        return found

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._copy_back()
        return done

    def get_future(self) -> Any:
        return self._work.get_future().then(self._value)

    def _value(self, future: Any) -> list[torch.Tensor]:
        future.wait()  # raises what the library raised
        written = [tensor for tensor, _ in self._pairs]
        self._copy_back()
        return written

    def _copy_back(self) -> None:
        """Copy once: what is written into the tensors later stays."""
        pairs, self._pairs = self._pairs, []
        with torch.no_grad():
            for tensor, copy in pairs:
                tensor.copy_(copy)


def _tensors(given: Any) -> list[torch.Tensor]:
    """The tensors of arguments: each is one, a list, or a list of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, (list, tuple)):
        return [each for part in given for each in _tensors(part)]
    return []


def _with(given: Any, copies: dict[int, torch.Tensor]) -> Any:
    """The arguments with copies in place of their tensors."""
    if isinstance(given, torch.Tensor):
        return copies[id(given)]
    return [_with(each, copies) for each in given] if isinstance(given, (list, tuple)) else given
