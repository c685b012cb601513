"""``torch.cuda.amp``, for the current device of any vendor."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

from portagpu.devices.functions import GradScaler
from portagpu.devices.functions import autocast as _autocast
from portagpu.devices.registry import device_string

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.training import NoAutocast

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

_F = TypeVar("_F", bound="Callable[..., Any]")


def autocast(
    enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = True
) -> torch.autocast | NoAutocast:
    """``torch.autocast`` for the current device, with the arguments of ``torch.cuda.amp``'s.

    :param enabled: whether anything is cast; False is a block that changes nothing.
    :param dtype: float16 or bfloat16; by default torch's for the device: float16 on a GPU, bfloat16
        on a CPU. float32 casts nothing.
    :param cache_enabled: whether casts of weights are kept inside the block; None is torch's
        setting.
    :returns: a context manager.
    :raises ValueError: for another dtype.
    :raises Unsupported: where the device has no autocast, unless ``enabled`` is False.
    """
    return _autocast(dtype, enabled, cache_enabled)


def _decorate_when_called(name: str, function: Callable[..., Any], **options: Any) -> Any:
    """``function``, decorated by torch at each call, for the device that is then current."""
    made: dict[str, Callable[..., Any]] = {}

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        kind = device_string()
        decorated = made.get(kind)
        if decorated is None:
            import torch

            decorate = getattr(torch.amp, name)
            decorated = made[kind] = decorate(function, device_type=kind, **options)
        return decorated(*arguments, **keywords)

    return call


@overload
def custom_fwd(fwd: _F, *, cast_inputs: torch.dtype | None = None) -> _F: ...
@overload
def custom_fwd(
    fwd: None = None, *, cast_inputs: torch.dtype | None = None
) -> Callable[[_F], _F]: ...
def custom_fwd(fwd: _F | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd`` for the current device, which decorating does not open.

    :param fwd: the ``forward`` of a ``torch.autograd.Function``; None where arguments are given.
    :param cast_inputs: the dtype to which floating-point inputs on the device are cast inside
        autocast; None casts nothing.
    :returns: the decorated function, or a decorator where ``fwd`` is None.
    """
    if fwd is None:
        return partial(custom_fwd, cast_inputs=cast_inputs)
    return _decorate_when_called("custom_fwd", fwd, cast_inputs=cast_inputs)


@overload
def custom_bwd(bwd: _F) -> _F: ...
@overload
def custom_bwd(bwd: None = None) -> Callable[[_F], _F]: ...
def custom_bwd(bwd: _F | None = None) -> Any:
    """``torch.amp.custom_bwd`` for the current device, which decorating does not open."""
    return custom_bwd if bwd is None else _decorate_when_called("custom_bwd", bwd)
