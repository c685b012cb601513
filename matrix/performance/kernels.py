"""The portable kernels next to torch's own operators, measured in turns in one run.

A value is a ratio of times, so that neither the clock nor the device's state is in it. ``[torch]``
is how many times as fast the kernel is as torch's operator; ``[copy]`` is the share of the
bandwidth of torch's copy of the same tensor at which it moves what it has to read and write. Both
are replayed from a graph where the device has graphs: 30 us of Python are half of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.contract import Capability
from portagpu.suites.performance.cases import (
    BenchCase,
    cache_sentence,
    large_array_bytes,
    no_triton,
)
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.contract import Backend
    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice

_OF_COPY: Final = 0.9
_OF_TORCH: Final = 0.95
"""The least ratios. A kernel that is much slower than torch's own operator is of no use."""
_HELD_TO_TORCH: Final = ("softmax", "rms_norm", "quantize_fp8", "adamw_step")
_BOUND_BY_MEMORY: Final = ("copy", "triad", "sum", *_HELD_TO_TORCH)

METRICS: Final = tuple(f"kernels/{name}" for name in (*_BOUND_BY_MEMORY, "matmul"))

_SEED: Final = 20240305
_COLUMNS: Final = 4096
_EDGE: Final = {Effort.QUICK: 4096, Effort.FULL: 8192}
_SCALAR: Final = 3.0
_CHECKED_ROWS: Final = 64
_ADAMW: Final[dict[str, Any]] = {"lr": 1e-3, "weight_decay": 1e-2}
_FP32: Final = ("adamw_step",)
"""Kernels that are measured in fp32, because torch's operator has moments of its parameter's dtype;
the others in bf16."""


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """Memory-bound kernels compared with a copy, and kernels that torch has with torch's."""
    del world, target
    array = large_array_bytes(device, 8, effort)
    absent = no_triton(device)
    edge = _EDGE[effort]
    found = [(name, "copy", _OF_COPY) for name in _BOUND_BY_MEMORY]
    found += [(name, "torch", _OF_TORCH) for name in _HELD_TO_TORCH]
    listed = [
        BenchCase(
            id=f"kernels/{name}[{other}]",
            metric=f"kernels/{name}",
            area="kernels",
            unit="ratio",
            function="compare",
            arguments={"kernel": name, "other": other, **_operands(name, array)},
            shape={"array_bytes": array, "dtype": "fp32" if name in _FP32 else "bf16"},
            counts=_COUNTS[other],
            checks=f"the first and last {_CHECKED_ROWS} rows within the kernel's bound of float64",
            does_not_show=cache_sentence(device, array),
            least=least,
            absent=absent,
        )
        for name, other, least in found
    ]
    product = BenchCase(
        id=f"kernels/matmul[{edge}]",
        metric="kernels/matmul",
        area="kernels",
        unit="ratio",
        function="compare",
        arguments={
            "kernel": "matmul",
            "other": "torch",
            "dtype": "bfloat16",
            "rows": edge,
            "columns": edge,
        },
        shape={"m": edge, "n": edge, "k": edge, "dtype": "bf16"},
        counts=_COUNTS["torch"],
        checks=f"the first and last {_CHECKED_ROWS} rows within the kernel's bound of float64",
        does_not_show="other shapes, or a config that was tuned for this one",
        absent=absent,
    )
    return [*listed, product]


def _operands(kernel: str, array: int) -> dict[str, Any]:
    """The dtype of a kernel's operands, and their rows and columns in ``array`` bytes."""
    dtype, width = ("float32", 4) if kernel in _FP32 else ("bfloat16", 2)
    rows = max(array // (width * _COLUMNS), _CHECKED_ROWS)
    return {"dtype": dtype, "rows": rows, "columns": _COLUMNS}


_COUNTS: Final = {
    "copy": "the bytes that must be read and written, over the kernel's time; the same of a copy",
    "torch": "the time of torch's own operator over the kernel's",
}


@dataclass(frozen=True, slots=True)
class Work:
    """Two calls to time; ``wrong`` returns what is wrong with a result of ours, or "".

    ``share`` is the work of one call of ours over that of one of theirs. ``reset`` puts back the
    operands that a call changes; ``notes`` say what the calls are.
    """

    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    wrong: Callable[[Any], str]
    share: float = 1.0
    reset: Callable[[], None] = lambda: None
    notes: dict[str, str] = field(default_factory=dict)


def compare(
    rank: Rank, *, effort: str, kernel: str, other: str, dtype: str, rows: int, columns: int
) -> dict[str, Any]:
    """Check the kernel's result, then time it and its reference in turns."""
    from importlib.util import find_spec

    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, time_in_turns

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED}
    if find_spec("triton") is None:
        reading.skip = "triton is not installed: it comes with torch's builds for GPUs"
        return reading.to_json()
    if kernel == "quantize_fp8" and rank.gpu.precision.fp8 is None:
        reading.skip = f"{rank.gpu.arch} has no fp8 of its own"
        return reading.to_json()
    work = make_work(rank, kernel, other, dtype, rows, columns)
    rank.step(f"checking {kernel}")
    if Capability.GRAPHS in rank.gpu.capabilities:
        work = replace(
            work,
            ours=_graph_launch(rank.gpu, work.ours),
            theirs=_graph_launch(rank.gpu, work.theirs),
        )
    reading.notes |= work.notes
    work.reset()
    if wrong := work.wrong(work.ours()):
        reading.reject(f"{kernel}: {wrong}")
        return reading.to_json()
    rank.step(f"timing {kernel}")
    times, repeats = time_in_turns(
        stopwatch, reading, work.ours, work.theirs, PACES[Effort(effort)]
    )
    reading.keep_ratios(times, repeats=repeats, work=work.share)
    return reading.to_json()


def _graph_launch(gpu: Backend, call: Callable[[], Any]) -> Callable[[], Any]:
    """``call`` as one launch of a graph, because Python may take as long as the kernel."""
    call()
    gpu.synchronize()
    graph = gpu.Graph()
    with gpu.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def make_work(rank: Rank, kernel: str, other: str, dtype: str, rows: int, columns: int) -> Work:
    """The calls on random operands of ``rows`` x ``columns`` elements."""
    import torch

    gpu = rank.gpu
    generator = torch.Generator(gpu.device).manual_seed(_SEED)

    def random_tensor(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=gpu.device)
        return values.to(getattr(torch, dtype))

    x = random_tensor(rows, columns)
    second = random_tensor(columns) if kernel == "rms_norm" else random_tensor(rows, columns)
    if kernel == "adamw_step":
        return _adamw_work(gpu, other, x, second)
    ours, theirs, wrong = _calls(gpu, kernel, x, second)
    if other == "torch":
        return Work(ours, theirs, wrong)
    fp8 = 1 / x.element_size()
    moved = {"copy": 2.0, "triad": 3.0, "sum": 1.0, "quantize_fp8": 1 + fp8}.get(kernel, 2.0)
    return Work(ours, x.clone, wrong, share=moved / 2)


def _calls(
    gpu: Any, kernel: str, x: torch.Tensor, second: torch.Tensor
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], str]]:
    """(our call, torch's call, a function that returns what is wrong with our result)."""
    import torch
    from torch.nn import functional

    from portagpu.train import kernels
    from portagpu.train.kernels import reference

    ours: Callable[[], Any] = partial(getattr(kernels, kernel), x)
    if kernel == "copy":
        return ours, x.clone, partial(_wrong_rows, reference.copy, None, (x,))
    if kernel == "sum":
        return ours, partial(torch.sum, x, dtype=torch.float32), partial(_wrong_sum, x)
    if kernel == "softmax":
        wrong = partial(_wrong_rows, reference.softmax, reference.softmax_bound, (x,))
        return ours, partial(torch.softmax, x, -1), wrong
    if kernel == "quantize_fp8":
        fp8 = gpu.precision.fp8.e4m3
        return ours, partial(_quantise_by_torch, x, fp8), partial(_wrong_quantised, x, fp8)
    ours = partial(getattr(kernels, kernel), x, second)
    if kernel == "rms_norm":
        normed = partial(functional.rms_norm, x, (x.shape[-1],), second, 1e-6)
        # the weight belongs to every row
        wrong = partial(
            _wrong_rows,
            lambda rows: reference.rms_norm(rows, second),
            lambda rows: reference.rms_norm_bound(rows, second),
            (x,),
        )
        return ours, normed, wrong
    if kernel == "triad":
        wrong = partial(
            _wrong_rows,
            lambda b, c: reference.triad(b, c, _SCALAR),
            lambda b, c: reference.triad_bound(b, c, _SCALAR),
            (x, second),
        )
        theirs = partial(torch.add, x, second, alpha=_SCALAR)
        return partial(kernels.triad, x, second, _SCALAR), theirs, wrong
    wrong = partial(
        _wrong_rows,
        lambda rows: reference.matmul(rows, second),
        lambda rows: reference.matmul_bound(rows, second),
        (x,),
    )
    return ours, partial(torch.matmul, x, second), wrong


def _adamw_work(gpu: Backend, other: str, start: torch.Tensor, gradient: torch.Tensor) -> Work:
    """One step of AdamW in place, which moves seven arrays and a copy two."""
    import torch

    from portagpu.train import kernels

    changed = [start.clone(), torch.zeros_like(start), torch.zeros_like(start)]

    def ours() -> list[torch.Tensor]:
        kernels.adamw_step(changed[0], gradient, *changed[1:], step=1, **_ADAMW)
        return changed

    def reset() -> None:
        changed[0].copy_(start)
        changed[1].zero_()
        changed[2].zero_()

    wrong = partial(_wrong_step, start, gradient)
    if other == "copy":
        return Work(ours, start.clone, wrong, share=3.5, reset=reset)
    form, theirs = _torch_step(gpu, start, gradient)
    return Work(ours, theirs, wrong, reset=reset, notes={"torch_form": form})


def _torch_step(
    gpu: Backend, start: torch.Tensor, gradient: torch.Tensor
) -> tuple[str, Callable[[], Any]]:
    """The form of torch's AdamW, "fused" where torch has that here, else "foreach"; its step."""
    import torch

    graphs = Capability.GRAPHS in gpu.capabilities

    def take_first_step(**form: bool) -> Callable[[], Any]:
        parameter = start.clone().requires_grad_()
        parameter.grad = gradient
        optimiser = torch.optim.AdamW([parameter], capturable=graphs, **_ADAMW, **form)
        optimiser.step()
        return optimiser.step

    try:
        return "fused", take_first_step(fused=True)
    except RuntimeError as error:
        if "fused" not in str(error):
            raise
    return "foreach", take_first_step(foreach=True)


def _wrong_step(start: torch.Tensor, gradient: torch.Tensor, found: list[torch.Tensor]) -> str:
    """What is wrong after the first step, in parameter and moments."""
    import torch

    from portagpu.train.kernels import reference

    p, g, *ends = map(_first_and_last_rows, (start, gradient, *found))
    given = (p, g, torch.zeros_like(p), torch.zeros_like(p))
    exact = reference.adamw_step(*given, step=1, **_ADAMW)
    bound = reference.adamw_step_bound(*given, step=1, **_ADAMW)
    right = [(e.double() - x).abs() <= b for e, x, b in zip(ends, exact, bound, strict=True)]
    return _count_beyond_bound(torch.stack(right))


def _first_and_last_rows(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([tensor[:_CHECKED_ROWS], tensor[-_CHECKED_ROWS:]])


def _wrong_rows(
    exact: Callable[..., torch.Tensor],
    bound: Callable[..., torch.Tensor] | None,
    operands: tuple[torch.Tensor, ...],
    found: torch.Tensor,
) -> str:
    """How many elements of the first and last rows exceed the bound, in a sentence."""
    ends = [_first_and_last_rows(each) for each in operands]
    right = exact(*ends).double()
    allowed = 0.0 if bound is None else bound(*ends)
    return _count_beyond_bound((_first_and_last_rows(found).double() - right).abs() <= allowed)


def _wrong_sum(x: torch.Tensor, found: torch.Tensor) -> str:
    from portagpu.train.kernels import reference

    return _count_beyond_bound((found.double() - reference.sum(x)).abs() <= reference.sum_bound(x))


def _wrong_quantised(
    x: torch.Tensor, fp8: torch.dtype, found: tuple[torch.Tensor, torch.Tensor]
) -> str:
    from portagpu.train.kernels import reference

    values, scales = (_first_and_last_rows(each) for each in found)
    again = values.double() * scales.double().unsqueeze(-1)
    ends = _first_and_last_rows(x)
    return _count_beyond_bound(
        (again - ends.double()).abs() <= reference.quantize_fp8_bound(ends, fp8)
    )


def _count_beyond_bound(right: torch.Tensor) -> str:
    off = int((~right).sum())
    return f"{off} of {right.numel()} elements are further off than their bound" if off else ""


def _quantise_by_torch(x: torch.Tensor, fp8: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The same quantisation by torch's own operators."""
    import torch

    limit = torch.finfo(fp8).max
    scale = x.abs().amax(-1, keepdim=True).float() / limit
    return (x / scale).clamp(-limit, limit).to(fp8), scale.squeeze(-1)
