"""Faults of gradient scaling: of the scale, the check, skipped steps and the state."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from portagpu_cpu.backend import CpuBackend
from tests.support.faults import Fault, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

Scaler = torch.amp.GradScaler
CHECK = "_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "_amp_update_scale_"

TENSORS: dict[str, Callable[[int, int, torch.Tensor], bool]] = {
    "of the first gradient": lambda index, count, grad: index == 0,
    "of the last gradient": lambda index, count, grad: index == count - 1,
    "of all but the first gradient": lambda index, count, grad: index > 0,
    "of bfloat16": lambda index, count, grad: grad.dtype == torch.bfloat16,
    "of float32": lambda index, count, grad: grad.dtype == torch.float32,
    "of matrices": lambda index, count, grad: grad.dim() == 2,
    "of an odd size": lambda index, count, grad: grad.numel() % 2 == 1,
    "of all gradients": lambda index, count, grad: True,
}


def _checked(change: Callable[..., None], region: Any) -> Callable[..., Any]:
    """``change(grad, found, inverse)`` for each gradient of the region; the others are right."""

    def faulty(good: Any, grads: Any, found: Any, inverse: Any) -> Any:
        # one list for each dtype: the place is counted over the scaler's parameters
        for index, grad in enumerate(grads):
            if region(index, len(grads), grad):
                change(good, grad, found, inverse)
            else:
                good([grad], found, inverse)

    return faulty


def _unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    good([grad], torch.zeros_like(found), inverse)


def _nan_unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    seen = torch.zeros_like(found) if bool(grad.isnan().any()) else found
    good([grad], seen, inverse)


def _infinity_unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    seen = torch.zeros_like(found) if bool(grad.isinf().any()) else found
    good([grad], seen, inverse)


def _minus_unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    seen = torch.zeros_like(found) if bool((grad == -torch.inf).any()) else found
    good([grad], seen, inverse)


def _first_unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    bad = not bool(grad.flatten()[0].isfinite())
    good([grad], torch.zeros_like(found) if bad else found, inverse)


def _last_unseen(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    bad = not bool(grad.flatten()[-1].isfinite())
    good([grad], torch.zeros_like(found) if bad else found, inverse)


def _kept(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    good([grad.clone()], found, inverse)


def _twice(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    good([grad], found, inverse)
    good([grad], found, inverse)


def _last_kept(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    old = grad.flatten()[-1].clone()
    good([grad], found, inverse)
    grad.view(-1)[-1] = old


def _zeroed(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    good([grad], found, inverse)
    grad.nan_to_num_(0.0, 0.0, 0.0)


def _always(good: Any, grad: Any, found: Any, inverse: Any) -> None:
    good([grad], found, inverse)
    found.fill_(1)


CHECKS = {
    "nothing is seen": _unseen,
    "NaN is not seen": _nan_unseen,
    "infinity is not seen": _infinity_unseen,
    "minus infinity is not seen": _minus_unseen,
    "the first element is not seen": _first_unseen,
    "the last element is not seen": _last_unseen,
    "it stays scaled": _kept,
    "it is unscaled twice": _twice,
    "its last element stays scaled": _last_kept,
    "what is not finite becomes 0": _zeroed,
    "all are taken as infinite": _always,
}

UPDATES: dict[str, Callable[[Any, float], bool]] = {
    "everywhere": lambda scale, interval: True,
    "of scales above 1": lambda scale, interval: float(scale) > 1,
    "of an interval of 1": lambda scale, interval: interval == 1,
    "of an interval of 3": lambda scale, interval: interval == 3,
}


def _no_growth(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    _growth, backoff, interval = options
    good(scale, tracker, found, 1.0, backoff, interval)


def _no_backoff(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    growth, _backoff, interval = options
    good(scale, tracker, found, growth, 1.0, interval)


def _late(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    growth, backoff, interval = options
    good(scale, tracker, found, growth, backoff, interval + 1)


def _early(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    growth, backoff, interval = options
    good(scale, tracker, found, growth, backoff, max(1, interval - 1))


def _growth_of_two(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    good(scale, tracker, found, 2.0, 0.5, options[2])


def _tracker_kept(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    old = tracker.clone()
    good(scale, tracker, found, *options)
    if float(found) > 0:
        tracker.copy_(old)


def _tracker_after_growth(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    before = float(scale)
    good(scale, tracker, found, *options)
    if float(scale) > before:
        tracker.fill_(1)


def _tracker_still(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    old = tracker.clone()
    good(scale, tracker, found, *options)
    tracker.copy_(old)


def _never_infinite(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> None:
    good(scale, tracker, torch.zeros_like(found), *options)


def _nothing_updated(good: Any, *given: Any) -> None:
    del good, given


SCALES = {
    "does not grow": _no_growth,
    "does not back off": _no_backoff,
    "grows one update late": _late,
    "grows one update early": _early,
    "has the factors 2 and 0.5": _growth_of_two,
    "keeps the tracker when it backs off": _tracker_kept,
    "begins at 1 after growing": _tracker_after_growth,
    "does not count": _tracker_still,
    "takes all as finite": _never_infinite,
    "does nothing": _nothing_updated,
}


def _updated(change: Any, region: Any) -> Callable[..., Any]:
    def faulty(good: Any, scale: Any, tracker: Any, found: Any, *options: Any) -> Any:
        hit = region(scale, options[2])
        (change if hit else _right)(good, scale, tracker, found, *options)
        return scale

    return faulty


def _right(good: Any, *given: Any) -> None:
    good(*given)


def _equivalent(where: str, wrong: str) -> bool:
    """Whether nothing could show it: an interval of 1 is none earlier, and counts to nothing."""
    return where == "of an interval of 1" and wrong in (
        "grows one update early",
        "keeps the tracker when it backs off",
        "does not count",
    )


OPTIMIZERS: dict[str, Callable[[Any], bool]] = {
    "of any optimizer": lambda optimizer: True,
    "of one group": lambda optimizer: len(optimizer.param_groups) == 1,
    "of two groups": lambda optimizer: len(optimizer.param_groups) == 2,
    "of foreach": lambda optimizer: bool(optimizer.foreach),
}


def _always_steps(good: Any, scaler: Any, optimizer: Any) -> Any:
    found = good(scaler, optimizer)
    state = scaler._per_optimizer_states[id(optimizer)] if scaler._enabled else {}
    if any(v.item() for v in state.get("found_inf_per_device", {}).values()):
        return optimizer.step()
    return found


def _never_steps(good: Any, scaler: Any, optimizer: Any) -> Any:
    with replaced(optimizer, "step", lambda plain: None):
        return good(scaler, optimizer)


def _returns_nothing(good: Any, scaler: Any, optimizer: Any) -> Any:
    good(scaler, optimizer)


def _steps_twice(good: Any, scaler: Any, optimizer: Any) -> Any:
    found = good(scaler, optimizer)
    return optimizer.step() if found is not None else found


def _again_allowed(good: Any, scaler: Any, optimizer: Any) -> Any:
    try:
        return good(scaler, optimizer)
    except RuntimeError:
        return None


def _skips(good: Any, scaler: Any, optimizer: Any) -> Any:
    del good, scaler, optimizer


def _forgets(good: Any, scaler: Any, optimizer: Any) -> Any:
    found = good(scaler, optimizer)
    scaler._per_optimizer_states[id(optimizer)]["stage"] = torch.amp.grad_scaler.OptState.READY
    return found


METHODS = {
    "step": {
        "is taken with infinite gradients": _always_steps,
        "is never taken": _never_steps,
        "returns nothing": _returns_nothing,
        "is taken twice": _steps_twice,
        "refuses nothing": _again_allowed,
        "does nothing": _skips,
        "forgets that it was taken": _forgets,
    },
    "unscale_": {
        "refuses nothing": _again_allowed,
        "does nothing": _skips,
        "forgets that it was called": _forgets,
    },
}


def _of_method(change: Any, region: Any) -> Callable[..., Any]:
    def faulty(good: Any, scaler: Any, optimizer: Any) -> Any:
        return change(good, scaler, optimizer) if region(optimizer) else good(scaler, optimizer)

    return faulty


def _without(key: str) -> Callable[..., Any]:
    def saved(good: Any, scaler: Any) -> Any:
        state = good(scaler)
        if state:
            state[key] = {"scale": 65536.0, "_growth_tracker": 0, "growth_interval": 2000}.get(
                key, 2.0
            )
        return state

    return saved


def _loads_without(key: str) -> Callable[..., Any]:
    def loaded(good: Any, scaler: Any, state: Any) -> None:
        old = scaler.state_dict()
        good(scaler, {**state, key: old[key]} if scaler.is_enabled() else state)

    return loaded


def _ignores_new(good: Any, scaler: Any, new: Any = None) -> Any:
    if new is None or not scaler._per_optimizer_states:
        return good(scaler, new)
    return good(scaler, scaler.get_scale()) if scaler._scale is not None else good(scaler, new)


def _ignores_tensor(good: Any, scaler: Any, new: Any = None) -> Any:
    return _ignores_new(good, scaler, new) if isinstance(new, torch.Tensor) else good(scaler, new)


def _keeps_stages(good: Any, scaler: Any, new: Any = None) -> Any:
    kept = dict(scaler._per_optimizer_states)
    good(scaler, new)
    scaler._per_optimizer_states.update(kept)


def _tracker_reset(good: Any, scaler: Any, new: Any = None) -> Any:
    good(scaler, new)
    if new is not None and scaler._enabled:
        scaler._growth_tracker.fill_(0)


def _first_only(good: Any, scaler: Any, new: Any = None) -> Any:
    """Only the first optimizer's infinities count."""
    if new is None and scaler._enabled:
        every = list(scaler._per_optimizer_states.values())
        for state in every[1:]:
            if every[0]["found_inf_per_device"]:
                state["found_inf_per_device"] = {}
    return good(scaler, new)


def _last_only(good: Any, scaler: Any, new: Any = None) -> Any:
    """Only the last optimizer's infinities count."""
    if new is None and scaler._enabled:
        every = list(scaler._per_optimizer_states.values())
        for state in every[:-1]:
            if every[-1]["found_inf_per_device"]:
                state["found_inf_per_device"] = {}
    return good(scaler, new)


def _unscaled_loss(good: Any, scaler: Any, outputs: Any) -> Any:
    good(scaler, outputs)
    return outputs


def _scaled_twice(good: Any, scaler: Any, outputs: Any) -> Any:
    return good(scaler, good(scaler, outputs))


def _scaled_at_first(good: Any, scaler: Any, outputs: Any) -> Any:
    found = good(scaler, outputs)
    return outputs * scaler._init_scale if scaler._enabled else found


def _scaled_anyway(good: Any, scaler: Any, outputs: Any) -> Any:
    return good(scaler, outputs) if scaler._enabled else outputs * scaler_default


scaler_default = 65536.0

WHOLE: dict[str, tuple[str, Callable[..., Any]]] = {
    **{
        f"state_dict: everywhere: loses {key}": ("state_dict", _without(key))
        for key in (
            "scale",
            "_growth_tracker",
            "growth_interval",
            "growth_factor",
            "backoff_factor",
        )
    },
    **{
        f"load_state_dict: everywhere: leaves {key}": ("load_state_dict", _loads_without(key))
        for key in (
            "scale",
            "_growth_tracker",
            "growth_interval",
            "growth_factor",
            "backoff_factor",
        )
    },
    "update: with a new scale: ignores it": ("update", _ignores_new),
    "update: with a new scale of a tensor: ignores it": ("update", _ignores_tensor),
    "update: everywhere: keeps what was stepped": ("update", _keeps_stages),
    "update: with a new scale: begins to count again": ("update", _tracker_reset),
    "update: of two optimizers: takes the first alone": ("update", _first_only),
    "update: of two optimizers: takes the last alone": ("update", _last_only),
    "scale: everywhere: does not scale": ("scale", _unscaled_loss),
    "scale: everywhere: scales twice": ("scale", _scaled_twice),
    "scale: everywhere: scales by the first scale": ("scale", _scaled_at_first),
    "scale: disabled: scales": ("scale", _scaled_anyway),
}


def _options(change: dict[int, Any]) -> Callable[..., Any]:
    def faulty(good: Any, gpu: Any, *given: Any) -> Any:
        values = list(given)
        for index, value in change.items():
            if index < len(values):
                values[index] = value
        return good(gpu, *values)

    return faulty


HANDLES = {
    "ignores the scale": {0: 65536.0},
    "ignores the growth factor": {1: 2.0},
    "ignores the backoff factor": {2: 0.5},
    "ignores the interval": {3: 2000},
    "is always enabled": {4: True},
    "is never enabled": {4: False},
}


def _fused_always(good: Any, *given: Any, **named: Any) -> Any:
    named["found_inf"] = torch.zeros_like(named["found_inf"])
    return good(*given, **named)


def _fused_scaled(good: Any, *given: Any, **named: Any) -> Any:
    return good(*given, **named | {"grad_scale": None})


def _fused_vector(good: Any, parameters: list[Any], *given: Any, **named: Any) -> Any:
    """Elements after the last four are left."""
    before = [each[len(each) // 4 * 4 :].clone() for each in parameters]
    good(parameters, *given, **named)
    for each, rest in zip(parameters, before, strict=True):
        each[len(each) // 4 * 4 :] = rest


FUSED = {
    "ignores what is not finite": _fused_always,
    "ignores the scale": _fused_scaled,
    "leaves the rest of a vector of four": _fused_vector,
}
"""After pytorch#96755: what fused steps of torch's optimizers do wrong."""


def _block(place: Any, name: str, change: Any) -> Callable[[], Any]:
    return lambda: replaced(place, name, change)


def faults() -> list[Fault]:
    """All of them."""
    found = [
        Fault(
            "scaler", f"the check: {where}: {wrong}", _block(torch, CHECK, _checked(change, region))
        )
        for (where, region), (wrong, change) in product(TENSORS.items(), CHECKS.items())
    ]
    found += [
        Fault(
            "scaler", f"update: {where}: {wrong}", _block(torch, UPDATE, _updated(change, region))
        )
        for (where, region), (wrong, change) in product(UPDATES.items(), SCALES.items())
        if not _equivalent(where, wrong)
    ]
    for name, wrongs in METHODS.items():
        found += [
            Fault(
                "scaler",
                f"{name}: {where}: {wrong}",
                _block(Scaler, name, _of_method(change, region)),
            )
            for (where, region), (wrong, change) in product(OPTIMIZERS.items(), wrongs.items())
        ]
    found += [Fault("scaler", name, _block(Scaler, *each)) for name, each in WHOLE.items()]
    found += [
        Fault("scaler", f"{call}: everywhere: {wrong}", _block(torch, f"_fused_{call}_", change))
        for call in ("sgd", "adam", "adamw")
        for wrong, change in FUSED.items()
        # a step against the sign has no scale
        if (call == "sgd") or change is not _fused_scaled
    ]
    found += [
        Fault(
            "scaler",
            f"gpu.GradScaler: everywhere: {wrong}",
            _block(CpuBackend, "GradScaler", _options(change)),
        )
        for wrong, change in HANDLES.items()
    ]
    return found
