"""Normalisations and optimiser steps, which the memory limits: bandwidth in GB/s.

What is counted is what has to be read and written once. Next to torch's own, "[portable]" is this
package's kernel for the same work. Ratios of both, measured in turns, are in the area "kernels".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.performance.cases import (
    BenchCase,
    cache_sentence,
    large_array_bytes,
    no_triton,
)
from portagpu.suites.performance.timing import Effort
from portagpu.train import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice

_NORMS: Final = ("layer_norm", "rms_norm")
_COLUMNS: Final = 4096
_CHECKED_ROWS: Final = 64
_EPS: Final = 1e-5
_SEED: Final = 20240308
_QUICK_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An optimiser of torch: its class, its settings, and the float32 numbers that a step moves."""

    name: str
    settings: dict[str, float]
    moved: int
    flops: int
    counts: str


OPTIMISERS: Final = {
    "adamw": Optimiser(
        "AdamW",
        {"lr": 1e-2, "weight_decay": 0.1},
        7,
        14,
        "28 bytes a parameter: parameter, gradient and two moments read, all but the gradient "
        "written",
    ),
    "sgd": Optimiser(
        "SGD",
        {"lr": 1e-2, "momentum": 0.9},
        5,
        4,
        "20 bytes a parameter: parameter, gradient and momentum read, parameter and momentum "
        "written",
    ),
}
_FORMS: Final = ("fused", "foreach", "loop")
_PORTABLE: Final = "portable"
_WITH_KERNELS: Final = ("rms_norm", "adamw")
"""What this package has a kernel for."""
METRICS: Final = tuple(f"operators/{name}" for name in (*_NORMS, *OPTIMISERS))
_PARTS: Final = 16
"""Parts of what a step updates: tensors for torch's, because a model has many. The kernel has all
of them in one tensor, because it is launched for each."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Normalisations over rows, and each optimiser in each form that there is of it."""
    del world, target
    array = large_array_bytes(device, 4, effort)
    if device.shared and effort is Effort.QUICK:
        array = min(array, _QUICK_BYTES)
    rows = max(array // (4 * _COLUMNS), _CHECKED_ROWS)
    norms = [(name, "") for name in _NORMS]
    norms += [(name, _PORTABLE) for name in _NORMS if name in _WITH_KERNELS]
    found = [
        BenchCase(
            id=f"operators/{name}[{form}]".removesuffix("[]"),
            function="norm",
            arguments={"name": name, "form": form, "rows": rows, "columns": _COLUMNS},
            counts="one array read and one written, 8 bytes for each float32 element",
            checks=f"the first and last {_CHECKED_ROWS} rows against float64, within a bound",
            **_shared_fields(device, f"operators/{name}", form, array),
        )
        for name, form in norms
    ]
    found += [
        BenchCase(
            id=f"operators/{name}[{form}]",
            function="step",
            arguments={"name": name, "form": form, "elements": array // 4 // _PARTS},
            counts=each.counts,
            checks="every parameter after one step against float64, within a bound",
            **_shared_fields(device, f"operators/{name}", form, array),
        )
        for name, each in OPTIMISERS.items()
        for form in _forms(name, effort)
    ]
    return found


def _forms(name: str, effort: Effort) -> tuple[str, ...]:
    torchs = _FORMS if effort is Effort.FULL else _FORMS[:2]
    return (*torchs, _PORTABLE) if name in _WITH_KERNELS else torchs


def _shared_fields(device: MeasuredDevice, metric: str, form: str, array: int) -> dict[str, Any]:
    return {
        "metric": metric,
        "area": "operators",
        "unit": "GB/s",
        "shape": {"array_bytes": array, "dtype": "fp32"},
        "does_not_show": cache_sentence(device, array),
        "absent": no_triton(device) if form == _PORTABLE else None,
    }


def norm(
    rank: Rank, *, effort: str, name: str, form: str, rows: int, columns: int
) -> dict[str, Any]:
    """Time a normalisation of ``rows`` x ``columns``, and check it before and after."""
    import torch

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    x, weight = (
        torch.randn(*shape, generator=generator, device=rank.gpu.device)
        for shape in ((rows, columns), (columns,))
    )
    found = normalise(name, form, x, weight)
    reading.reject(_wrong_rows(name, x, weight, found))
    if reading.wrong:
        return reading.to_json()

    def call() -> None:
        nonlocal found
        found = normalise(name, form, x, weight)

    rank.step(f"timing {name}")
    timing = measure(stopwatch, call, PACES[Effort(effort)])
    reading.reject(_wrong_rows(name, x, weight, found))
    moved = 2 * x.nbytes
    # a square or difference, two sums, and two products for each element
    reading.keep(timing, work=moved, flops=5 * x.numel(), moved=moved)
    return reading.to_json()


def normalise(name: str, form: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The call that is timed: torch's, or in the form "portable" this package's kernel."""
    from torch.nn import functional

    if form == _PORTABLE:
        return kernels.rms_norm(x, weight, _EPS)
    operator = functional.layer_norm if name == "layer_norm" else functional.rms_norm
    return operator(x, (x.shape[-1],), weight, eps=_EPS)


def _wrong_rows(name: str, x: torch.Tensor, weight: torch.Tensor, found: torch.Tensor) -> str:
    """What is wrong with the first and last rows, in a sentence; each operation on a row of n
    numbers rounds it, and sums of n numbers may round n times."""
    for part in (slice(None, _CHECKED_ROWS), slice(-_CHECKED_ROWS, None)):
        wide = x[part].double()
        if name == "layer_norm":
            wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * (wide.square().mean(-1, keepdim=True) + _EPS).rsqrt()
        right = scaled * weight.double()
        allowed = (x.shape[-1] + 16) * 2.0**-24 * (scaled.abs() + 1) * weight.double().abs()
        off = int((~((found[part].double() - right).abs() <= allowed)).sum())
        if off:
            return f"{off} of {right.numel()} elements are further off than their bound"
    return ""


def step(rank: Rank, *, effort: str, name: str, form: str, elements: int) -> dict[str, Any]:
    """Time steps of an optimiser over parts of ``elements`` each; the first step is checked, and
    the first step of a new one afterwards."""
    import torch

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    parts = _PARTS if form == _PORTABLE else 1
    reading.notes = {"seed": _SEED, "tensors": _PARTS // parts}
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    start, gradient = (
        torch.randn(elements, generator=generator, device=rank.gpu.device) for _ in range(2)
    )
    parameters = [start.repeat(parts).requires_grad_() for _ in range(_PARTS // parts)]
    for each in parameters:
        each.grad = gradient.repeat(parts)
    try:
        take_step = make(name, form, parameters)
        take_step()
    except (RuntimeError, TypeError) as error:
        if form != "fused" or "fused" not in str(error):
            raise
        reading.skip = f"torch has no fused {OPTIMISERS[name].name} on {rank.gpu.device.type}"
        return reading.to_json()
    reading.reject(_wrong_step(name, parameters, start, gradient))
    if reading.wrong:
        return reading.to_json()
    rank.step(f"timing {name} {form}")
    timing = measure(stopwatch, take_step, PACES[Effort(effort)])
    with torch.no_grad():
        for each in parameters:
            each.view(parts, -1).copy_(start)
    make(name, form, parameters)()
    reading.reject(_wrong_step(name, parameters, start, gradient))
    count, counted = _PARTS * elements, OPTIMISERS[name]
    moved = 4 * counted.moved * count
    reading.keep(timing, work=moved, flops=counted.flops * count, moved=moved)
    return reading.to_json()


def make(name: str, form: str, parameters: list[torch.Tensor]) -> Callable[[], Any]:
    """A step of a new optimiser: torch's in that form, or in "portable" this package's kernel."""
    import torch

    settings = OPTIMISERS[name].settings
    if form == _PORTABLE:
        (parameter,) = (each.detach() for each in parameters)
        moments = [torch.zeros_like(parameter) for _ in range(2)]
        tensors = (parameter, parameters[0].grad, *moments)
        return partial(kernels.adamw_step, *tensors, step=1, **settings)
    forms = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    made = getattr(torch.optim, OPTIMISERS[name].name)(parameters, **settings, **forms[form])
    take_step: Callable[[], Any] = made.step
    return take_step


def _wrong_step(
    name: str, found: list[torch.Tensor], start: torch.Tensor, gradient: torch.Tensor
) -> str:
    """What is wrong after the first step from ``start``, in a sentence.

    The first step of AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) with corrected
    moments is p (1 - lr w) - lr g / (|g| + eps); that of SGD with momentum is p - lr g.
    """
    p, g = start.double(), gradient.double()
    settings = OPTIMISERS[name].settings
    rate = settings["lr"]
    if name == "adamw":
        right = p * (1 - rate * settings["weight_decay"]) - rate * g / (g.abs() + 1e-8)
    else:
        right = p - rate * g
    allowed = 16 * 2.0**-24 * (p.abs() + rate * (1 + g.abs()))
    parts = [part for each in found for part in each.detach().view(-1, p.numel())]
    for number, each in enumerate(parts):
        off = int((~((each.double() - right).abs() <= allowed)).sum())
        if off:
            return f"{off} of {right.numel()} elements of parameter {number} are wrong after a step"
    return ""
