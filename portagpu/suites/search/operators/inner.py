"""Relative changes of the results of all operators inside a call, as roundings make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def inner_results_nudged(eps: float, seed: int) -> AbstractContextManager[Any]:
    """A block in which each new floating-point result is times 1 ± ``eps``, with random signs.

    It is arithmetic with random rounding on the level of operators (Parker, Monte Carlo Arithmetic,
    1997). Views and what is written in place stay as they are.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    signs = torch.Generator().manual_seed(seed)

    def nudged(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        if not (value.is_floating_point() or value.is_complex()):
            return value
        if value.dtype not in (torch.float64, torch.complex128):
            return value
        bits = torch.randint(0, 2, value.shape, generator=signs)
        return value * (1 + eps * (2 * bits - 1))

    class Nudging(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if not func._schema.returns or not _computes(func):
                return found
            fresh = [each.alias_info is None for each in func._schema.returns]
            if len(fresh) == 1:
                return tree_map(nudged, found) if fresh[0] else found
            both = zip(found, fresh, strict=True)
            return tuple(tree_map(nudged, one) if new else one for one, new in both)

    made: AbstractContextManager[Any] = Nudging()  # type: ignore[no-untyped-call]
    return made


_EXACT = """
    clone copy _to_copy detach zeros zeros_like ones ones_like empty empty_like full full_like
    arange scalar_tensor eye new_zeros new_empty new_full new_ones cat stack where gather flip
    roll index_select index select_backward slice_backward masked_fill scatter neg tril triu"""
"""Operators that round nothing."""


def _computes(func: Any) -> bool:
    return func._schema.name.partition("::")[2] not in _EXACT.split()
