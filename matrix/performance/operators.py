"""torch's own normalisations and optimiser steps, which the memory limits: bandwidth in GB/s.

What is counted is what has to be read and written once. This package's kernels for some of them
stand beside torch's in the area "kernels"; it has no optimiser of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.bench.cases import BenchCase, cache_sentence, large_array_bytes
from portagpu.bench.timing import Effort

if TYPE_CHECKING:
    import torch

    from portagpu.bench.device import MeasuredDevice
    from portagpu.target import Target
    from portagpu.world import Rank

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
METRICS: Final = tuple(f"operators/{name}" for name in (*_NORMS, *OPTIMISERS))
_TENSORS: Final = 16
"""Parameters that a step updates: a model has many."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Normalisations over rows, and each optimiser in each form that torch has of it."""
    del world, target
    array = large_array_bytes(device, 4, effort)
    if device.shared and effort is Effort.QUICK:
        array = min(array, _QUICK_BYTES)
    rows = max(array // (4 * _COLUMNS), _CHECKED_ROWS)
    found = [
        BenchCase(
            id=f"operators/{name}",
            function="norm",
            arguments={"name": name, "rows": rows, "columns": _COLUMNS},
            counts="one array read and one written, 8 bytes for each float32 element",
            checks=f"the first and last {_CHECKED_ROWS} rows against float64, within a bound",
            **_shared_fields(device, f"operators/{name}", array),
        )
        for name in _NORMS
    ]
    found += [
        BenchCase(
            id=f"operators/{name}[{form}]",
            function="step",
            arguments={"name": name, "form": form, "elements": array // 4 // _TENSORS},
            counts=each.counts,
            checks="every parameter after one step against float64, within a bound",
            **_shared_fields(device, f"operators/{name}", array),
        )
        for name, each in OPTIMISERS.items()
        for form in (_FORMS if effort is Effort.FULL else _FORMS[:2])
    ]
    return found


def _shared_fields(device: MeasuredDevice, metric: str, array: int) -> dict[str, Any]:
    return {
        "metric": metric,
        "area": "operators",
        "unit": "GB/s",
        "shape": {"array_bytes": array, "dtype": "fp32"},
        "does_not_show": cache_sentence(device, array),
    }


def norm(rank: Rank, *, effort: str, name: str, rows: int, columns: int) -> dict[str, Any]:
    """Time a normalisation of ``rows`` x ``columns``, and check it before and after."""
    import torch

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    x, weight = (
        torch.randn(*shape, generator=generator, device=rank.gpu.device)
        for shape in ((rows, columns), (columns,))
    )
    found = normalise(name, x, weight)
    reading.reject(_wrong_rows(name, x, weight, found))
    if reading.wrong:
        return reading.to_json()

    def call() -> None:
        nonlocal found
        found = normalise(name, x, weight)

    rank.step(f"timing {name}")
    timing = measure(stopwatch, call, PACES[Effort(effort)])
    reading.reject(_wrong_rows(name, x, weight, found))
    moved = 2 * x.nbytes
    # a square or difference, two sums, and two products for each element
    reading.keep(timing, work=moved, flops=5 * x.numel(), moved=moved)
    return reading.to_json()


def normalise(name: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The call that is timed."""
    from torch.nn import functional

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
    """Time steps of an optimiser over parameters of ``elements`` each; the first step is checked,
    and the first step of a new one afterwards."""
    import torch

    from portagpu.bench.samples import RankSamples
    from portagpu.bench.timing import PACES, Stopwatch, measure

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED, "tensors": _TENSORS}
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    start, gradient = (
        torch.randn(elements, generator=generator, device=rank.gpu.device) for _ in range(2)
    )
    parameters = [start.clone().requires_grad_() for _ in range(_TENSORS)]
    for each in parameters:
        each.grad = gradient.clone()
    try:
        optimiser = make(name, form, parameters)
        optimiser.step()
    except (RuntimeError, TypeError) as error:
        if form != "fused" or "fused" not in str(error):
            raise
        reading.skip = f"torch has no fused {OPTIMISERS[name].name} on {rank.gpu.device.type}"
        return reading.to_json()
    reading.reject(_wrong_step(name, parameters, start, gradient))
    if reading.wrong:
        return reading.to_json()
    rank.step(f"timing {name} {form}")
    timing = measure(stopwatch, optimiser.step, PACES[Effort(effort)])
    with torch.no_grad():
        for each in parameters:
            each.copy_(start)
    make(name, form, parameters).step()
    reading.reject(_wrong_step(name, parameters, start, gradient))
    count, counted = _TENSORS * elements, OPTIMISERS[name]
    moved = 4 * counted.moved * count
    reading.keep(timing, work=moved, flops=counted.flops * count, moved=moved)
    return reading.to_json()


def make(name: str, form: str, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """A new optimiser in that form."""
    import torch

    forms = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    kind = getattr(torch.optim, OPTIMISERS[name].name)
    made: torch.optim.Optimizer = kind(parameters, **OPTIMISERS[name].settings, **forms[form])
    return made


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
    for number, each in enumerate(found):
        off = int((~((each.detach().double() - right).abs() <= allowed)).sum())
        if off:
            return f"{off} of {right.numel()} elements of parameter {number} are wrong after a step"
    return ""
