"""Tuning back ends: whether they are on, warm and valid here, and what each gains.

The state is in ``extra.state``. The value is the time without it over the time with it, in turns.
The back ends of a vendor's libraries come from its plugin; torch's own are here.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.cases import Absent, BenchCase
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from portagpu.devices.plugin_parts import TunerState
    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import WrongValue

METRICS: Final = ("tuning/library", "tuning/inductor", "tuning/triton_cache")

_SEED: Final = 20240310
_EDGE: Final = {False: 2048, True: 512}
_IMAGES: Final = (16, 64, 56, 56)
"""Images, channels, height and width of a convolution of ResNet-50 (arXiv 1512.03385)."""
_TURNS: Final = {Effort.QUICK: 3, Effort.FULL: 9}
_LAUNCH_LIMIT_S: Final = 50.0
"""Of one process, with the import of torch and the start of the device: below the case's own."""
_SLOW: Final = "compiling takes up to minutes: measured with --level full"


def cases(
    *, device: MeasuredDevice, effort: Effort, world: int, target: Target | None
) -> list[BenchCase]:
    """One case for each back end of the vendor's libraries, and torch's."""
    del world, target
    none = Absent(Verdict.SKIP, f"the {device.backend} backend names no tuning back end")
    slow = Absent(Verdict.SKIP, _SLOW) if effort is Effort.QUICK else None
    no_triton = None if device.triton else Absent(Verdict.SKIP, f"no Triton on {device.name}")
    gain = "the time without it over the time with it, in turns"
    product = "every element of an exact product"
    found = [
        _case("library", f"[{name}]", "library", gain, f"{product}; a convolution of one image")
        | {"arguments": {"name": name}}
        for name in device.tuners
    ] or [_case("library", "", "library", gain, product) | {"absent": none}]
    compiled = _case("inductor", "", "inductor", f"{gain}: a product and its bias", product)
    launched = f"{gain}: the first launch of a kernel in a new process"
    once = "every element against float64, and that a filled cache gets no new file"
    kept = _case("triton_cache", "", "triton_cache", launched, once)
    found += [
        compiled | {"absent": slow, "arguments": {"edge": _EDGE[device.shared]}},
        kept | {"absent": no_triton},
    ]
    return [BenchCase(**each) for each in found]


def _case(name: str, variant: str, function: str, counts: str, checks: str) -> dict[str, Any]:
    return {
        "id": f"tuning/{name}{variant}",
        "metric": f"tuning/{name}",
        "area": "tuning",
        "unit": "1" if function == "triton_cache" else "ratio",
        "function": function,
        "counts": counts,
        "checks": checks,
        "does_not_show": "the gain for other shapes, or the time that tuning takes"
        if function != "triton_cache"
        else "other kernels, or a cache that several processes share",
        "time_factor": 5.0,
    }


def library(rank: Rank, *, effort: str, name: str) -> dict[str, Any]:
    """Time the work of the vendor's tuner of that name with it and without, in turns."""
    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, time_in_turns

    tuner = next(each for each in rank.gpu.plugin.tuners() if each.name == name)
    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED, "state": asdict(tuner.state())}
    work, wrong = (_product if tuner.work == "product" else _convolution)(rank)

    def run(on: bool) -> None:
        with tuner.switched(on):
            work()

    for on in (True, False):
        rank.step(f"checking {name} {'on' if on else 'off'}")
        run(on)
        reading.reject(wrong())
    if reading.wrong:
        return reading.to_json()
    rank.step(f"timing {name}")
    ratios, repeats = time_in_turns(
        stopwatch, reading, partial(run, True), partial(run, False), PACES[Effort(effort)]
    )
    reading.reject(wrong())
    reading.keep_ratios(ratios, repeats=repeats, work=1.0)
    return reading.to_json()


def _product(rank: Rank) -> tuple[Callable[[], object], Callable[[], WrongValue | None]]:
    """(a product of a shape that heuristics rarely know, what is wrong with the last)."""
    from portagpu.suites.performance import matmul

    work = matmul.judged_product(rank.gpu, "bf16", 1024, 3072, 1280, _SEED)
    matmul.poison(work)
    return partial(matmul.multiply, work), partial(matmul.verify, work, _SEED)


def _convolution(rank: Rank) -> tuple[Callable[[], object], Callable[[], str]]:
    """(a 3 x 3 convolution, what is wrong with the first image of the last).

    Winograd's algorithm, which libraries choose for it, adds transforms of a few roundings to the
    sum over 9 x 64 products: 32 of them are allowed for.
    """
    import torch
    from torch.nn import functional

    rank.gpu.set_float32_precision("ieee")
    generator = torch.Generator(rank.gpu.device).manual_seed(_SEED)
    make = partial(torch.randn, generator=generator, device=rank.gpu.device)
    images, weights = make(_IMAGES), make((64, 64, 3, 3))
    last: list[torch.Tensor] = []

    def work() -> None:
        last[:] = [functional.conv2d(images, weights, padding=1)]

    def wrong() -> str:
        first, kernel = images[:1].double().cpu(), weights.double().cpu()
        right = functional.conv2d(first, kernel, padding=1)
        allowed = functional.conv2d(first.abs(), kernel.abs(), padding=1) * (9 * 64 + 32) * 2**-24
        off = int((~((last[0][:1].double().cpu() - right).abs() <= allowed)).sum())
        return f"{off} of {right.numel()} elements are further off than their bound" if off else ""

    return work, wrong


def inductor(rank: Rank, *, effort: str, edge: int) -> dict[str, Any]:
    """Time a compiled product and its bias with max-autotune and without, in turns."""
    import torch

    from portagpu.suites.performance import matmul
    from portagpu.suites.performance.timing import PACES, RankSamples, Stopwatch, time_in_turns

    stopwatch = Stopwatch(rank.gpu)
    reading = RankSamples.start(stopwatch)
    reading.notes = {"seed": _SEED, "state": asdict(inductor_state())}
    work = matmul.judged_product(rank.gpu, "fp32", edge, edge, edge, _SEED)
    calls = []
    for tuned in (True, False):
        rank.step(f"compiling {'with' if tuned else 'without'} max-autotune")
        call = compile_product(tuned)
        matmul.poison(work)
        try:
            work.result = call(work.a, work.b)
        except torch._dynamo.exc.TorchDynamoException as error:
            reading.skip = f"torch.compile builds nothing here: {str(error).splitlines()[0]}"
            return reading.to_json()
        reading.reject(matmul.verify(work, _SEED))
        calls.append(partial(call, work.a, work.b))
    if reading.wrong:
        return reading.to_json()
    rank.step("timing")
    ratios, repeats = time_in_turns(stopwatch, reading, *calls, PACES[Effort(effort)])
    reading.keep_ratios(ratios, repeats=repeats, work=1.0)
    return reading.to_json()


def compile_product(tuned: bool) -> Any:
    """A compiled product; max-autotune without graphs, so that both launch the same way."""
    import torch

    mode = "max-autotune-no-cudagraphs" if tuned else "default"
    return torch.compile(multiply, mode=mode, fullgraph=True)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What is compiled: a product, its bias of zero, and a clamp that changes nothing."""
    return ((a @ b) + 0.0).clamp(min=-1e30)


def inductor_state() -> TunerState:
    """Whether max-autotune is on, and what is in Inductor's cache."""
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    from portagpu.devices.plugin_parts import TunerState, files_below

    where = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    entries = files_below(where)
    remark = "entries are keyed by torch's sources, device and settings: others are not read"
    return TunerState(bool(config.max_autotune), bool(entries), None, where, entries, remark)


def triton_cache(rank: Rank, *, effort: str) -> dict[str, Any]:
    """Time first launches with an empty cache and with a filled one, in turns and new processes.

    No GPU has run it yet.
    """
    from portagpu.base.files import Scratch
    from portagpu.devices.plugin_parts import files_below
    from portagpu.suites.performance.timing import RankSamples, Stopwatch

    reading = RankSamples.start(Stopwatch(rank.gpu, host=True))
    reading.notes = {"state": asdict(triton_state())}
    ratios: list[float] = []
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    with Scratch("triton") as folder:
        rank.step("filling a cache")
        launch_in_new_process(rank, folder / "warm")
        kept = files_below(folder / "warm")
        if not kept:
            reading.skip = "a first launch leaves nothing in TRITON_CACHE_DIR: the cache is off"
            return reading.to_json()
        for turn in range(_TURNS[Effort(effort)]):
            rank.step(f"turn {turn}")
            for which in ("warm", "cold") if turn % 2 else ("cold", "warm"):
                place = folder / (which if which == "warm" else f"cold-{turn}")
                seconds[which].append(launch_in_new_process(rank, place))
            ratios.append(seconds["warm"][-1] / seconds["cold"][-1])
        if (found := files_below(folder / "warm")) != kept:
            reading.refuse(f"the filled cache went from {kept} to {found} files: it was not used")
    reading.notes |= {f"{name}_s": median(taken) for name, taken in seconds.items()}
    reading.notes["kept_files"] = kept
    reading.keep_ratios(ratios, repeats=1, work=1.0)
    return reading.to_json()


def launch_in_new_process(rank: Rank, cache: Path) -> float:
    """Seconds of the first launch of a new process whose cache is in that folder.

    Raises PortagpuError with what the process said.
    """
    from portagpu.base.errors import PortagpuError
    from portagpu.base.subprocesses import call

    seconds, problem = call(
        "portagpu.suites.performance.first_launch",
        "first_launch",
        [rank.gpu.name, rank.gpu.index],
        limit_s=_LAUNCH_LIMIT_S,
        environment={"TRITON_CACHE_DIR": str(cache), "TRITON_ALWAYS_COMPILE": "0"},
    )
    if problem:
        raise PortagpuError(f"no first launch: {problem}")
    return float(seconds)


def triton_state() -> TunerState:
    """Whether Triton's cache is used, and what is in it (Triton, python/triton/knobs.py)."""
    from portagpu.devices.plugin_parts import TunerState, files_below

    where = os.environ.get("TRITON_CACHE_DIR") or str(Path("~/.triton/cache").expanduser())
    entries = files_below(where)
    remark = "entries are keyed by source, compiler and architecture: others are not read"
    on = os.environ.get("TRITON_ALWAYS_COMPILE", "0") != "1"
    return TunerState(on, bool(entries), None, where, entries, remark)
