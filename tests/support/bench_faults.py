"""Rank functions of the performance suite with one thing broken, for the tests of the suite.

Each puts a faulty operation in the place of the real one and runs the measure as it is.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from portagpu.suites.performance import load_ranks, matmul, timing
from portagpu.suites.performance.cases import load_area

if TYPE_CHECKING:
    from pathlib import Path


def gemm_off_by_one_element(rank: Any, **arguments: Any) -> Any:
    right = matmul.multiply

    def multiply(work: matmul.Product) -> None:
        right(work)
        work.result[-1, 3] += 100

    matmul.multiply = multiply
    return load_area("gemm").gemm(rank, **arguments)


def gemm_that_goes_wrong_later(rank: Any, **arguments: Any) -> Any:
    right, calls = matmul.multiply, 0

    def multiply(work: matmul.Product) -> None:
        nonlocal calls
        calls += 1
        right(work)
        if calls > 3:
            work.result[0] *= 1.5

    matmul.multiply = multiply
    return load_area("gemm").gemm(rank, **arguments)


def gemm_that_does_nothing(rank: Any, **arguments: Any) -> Any:
    matmul.multiply = lambda work: None
    return load_area("gemm").gemm(rank, **arguments)


def gemm_in_half_precision(rank: Any, **arguments: Any) -> Any:
    def multiply(work: matmul.Product) -> None:
        work.result.copy_((work.a.bfloat16() @ work.b.bfloat16()).to(work.result.dtype))

    matmul.multiply = multiply
    return load_area("gemm").gemm(rank, **arguments)


def gemm_wrong_in_a_copy(rank: Any, **arguments: Any) -> Any:
    """The second set of operands is multiplied wrongly; the first, which is checked before, not."""
    right, first = matmul.multiply, None

    def multiply(work: matmul.Product) -> None:
        nonlocal first
        first = first or work
        right(work)
        if work is not first:
            work.result[0] *= 2

    matmul.multiply = multiply
    return load_area("gemm").gemm(rank, **arguments)


def search_with_one_wrong_square(rank: Any, **arguments: Any) -> Any:
    right = matmul.multiply

    def multiply(work: matmul.Product) -> None:
        right(work)
        if work.m == 64:
            work.result[-1] += 100

    matmul.multiply = multiply
    return load_area("gemm").search(rank, **arguments)


def stream_that_skips_the_last_element(rank: Any, **arguments: Any) -> Any:
    area = load_area("memory")
    right = area.apply
    area.apply = lambda operation, a, b, c: right(operation, a[:-1], b[:-1], c[:-1])
    return area.stream(rank, **arguments)


def sum_that_skips_the_last_element(rank: Any, **arguments: Any) -> Any:
    area = load_area("memory")
    right = area.apply
    area.apply = lambda operation, a, b, c: right(operation, a, b[:-1], c[:-1])
    return area.stream(rank, **arguments)


def transfer_that_flips_a_bit(rank: Any, **arguments: Any) -> Any:
    area = load_area("transfer")
    right = area.move

    def move(to: Any, what: Any, pinned: bool) -> None:
        right(to, what, pinned)
        to[4711] ^= 1

    area.move = move
    return area.transfer(rank, **arguments)


def both_ways_that_flip_a_bit(rank: Any, **arguments: Any) -> Any:
    area = load_area("transfer")
    right = area.move

    def move(to: Any, what: Any, pinned: bool) -> None:
        right(to, what, pinned)
        to[4711] ^= 1

    area.move = move
    return area.both_ways(rank, **arguments)


def peers_of_which_one_is_wrong(rank: Any, **arguments: Any) -> Any:
    right, calls = timing.first_wrong_byte, 0

    def first_wrong(found: Any, expected: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 4:
            found[99] ^= 1
        answer: str = right(found, expected)
        return answer

    timing.first_wrong_byte = first_wrong
    return load_area("transfer").between_devices(rank, **arguments)


def reduce_that_reports_its_environment(rank: Any, **arguments: Any) -> Any:
    found = load_area("collectives").collective(rank, **arguments)
    found["notes"]["seen"] = os.environ.get("EXAMPLE_NO_P2P")
    return found


def launch_that_is_lost(rank: Any, **arguments: Any) -> Any:
    area = load_area("launch")
    calls = 0

    def add_one(element: Any) -> None:
        nonlocal calls
        calls += 1
        if calls != 5:
            element.add_(1)

    area.add_one = add_one
    return area.launch(rank, **arguments)


def attention_wrong_in_one_element(rank: Any, **arguments: Any) -> Any:
    area = load_area("attention")
    right, other = area.compute, area.differentiate

    def compute(given: Any) -> Any:
        output = right(given).clone()
        output[-1, -1, 5, 3] += 1
        return output

    def differentiate(*given: Any) -> Any:
        gradients = other(*given)
        gradients[1][-1, -1, 5, 3] += 10
        return gradients

    area.compute, area.differentiate = compute, differentiate
    return area.attention(rank, **arguments)


def attention_by_another_back_end(rank: Any, **arguments: Any) -> Any:
    area = load_area("attention")
    right = area.chosen
    area.chosen = lambda choice: right("math")
    return area.attention(rank, **arguments)


def norm_without_its_weight(rank: Any, **arguments: Any) -> Any:
    area = load_area("operators")
    right = area.normalise
    area.normalise = lambda name, form, x, weight: right(name, form, x, weight.abs())
    return area.norm(rank, **arguments)


def step_with_another_rate(rank: Any, **arguments: Any) -> Any:
    area = load_area("operators")
    right = area.make

    def make(*given: Any) -> Any:
        found = right(*given)
        portable = isinstance(found, partial)
        settings = found.keywords if portable else found.__self__.param_groups[0]
        settings["lr"] *= 1.001
        return found

    area.make = make
    return area.step(rank, **arguments)


def training_without_a_gradient(rank: Any, **arguments: Any) -> Any:
    area = load_area("training")
    right = area.Training.differentiate

    def differentiate(self: Any, model: Any, words: Any, following: Any) -> Any:
        loss = right(self, model, words, following)
        self.model.blocks[1].up.weight.grad *= 1.2
        return loss

    area.Training.differentiate = differentiate
    return area.step(rank, **arguments)


def training_that_does_not_learn(rank: Any, **arguments: Any) -> Any:
    area = load_area("training")
    right = area.Training.start

    def start(*given: Any) -> Any:
        training = right(*given)
        training.optimiser.step = lambda: None
        return training

    area.Training.start = start
    return area.step(rank, **arguments)


def training_in_fp8(rank: Any, **arguments: Any) -> Any:
    """A CPU computes fp8 by converting it: what is checked are the values."""
    import torch

    fp8 = SimpleNamespace(e4m3=torch.float8_e4m3fn, e5m2=torch.float8_e5m2)
    object.__setattr__(rank.gpu, "precision", SimpleNamespace(fp8=fp8))
    return load_area("training").step(rank, **{**arguments, "dtype": "fp8"})


def training_in_fp8_with_a_wrong_scale(rank: Any, **arguments: Any) -> Any:
    """The gradients of weights are multiplied without the scale of the activations."""
    import torch

    from portagpu.suites.performance import matmul

    right = matmul.multiply_scaled

    def multiply(left: Any, one: Any, other: Any, scale: Any) -> Any:
        wrong = left.dtype == torch.float8_e5m2 and not left.is_contiguous()
        return right(left, one, other, torch.ones_like(scale) if wrong else scale)

    matmul.multiply_scaled = multiply
    return training_in_fp8(rank, **arguments)


def training_where_torch_refuses_fp8(rank: Any, **arguments: Any) -> Any:
    import torch

    right = torch._scaled_mm

    def refuse(left: Any, *others: Any, **options: Any) -> Any:
        if left.dtype == torch.float8_e5m2:
            raise RuntimeError("e5m2 needs another device\nand more lines")
        return right(left, *others, **options)

    torch._scaled_mm = refuse
    return training_in_fp8(rank, **arguments)


def compiled_by_nothing(rank: Any, **arguments: Any) -> Any:
    area = load_area("training")
    area.compile_model = lambda model: model
    return area.compiled(rank, **arguments)


def compiled_to_something_else(rank: Any, **arguments: Any) -> Any:
    area = load_area("training")
    area.compile_model = lambda model: lambda *batch: 1.01 * model(*batch)
    return area.compiled(rank, **arguments)


def storage_that_flips_a_bit(rank: Any, **arguments: Any) -> Any:
    from portagpu_cpu.storage import CpuFile

    def wrong(right: Any, after: bool) -> Any:
        def move(self: Any) -> None:
            if not after:
                self.memory[4711] ^= 1
            right(self)
            if after:
                self.memory[4711] ^= 1

        return move

    CpuFile.read, CpuFile.write = wrong(CpuFile.read, True), wrong(CpuFile.write, False)
    return load_area("storage").direct(rank, **arguments)


def storage_in_memory(rank: Any, **arguments: Any) -> Any:
    """The kernel counts nothing."""
    import portagpu_cpu.storage

    portagpu_cpu.storage.counters = lambda: {"read_bytes": 0, "write_bytes": 0}
    return load_area("storage").direct(rank, **arguments)


def loading_that_loses_a_batch(rank: Any, **arguments: Any) -> Any:
    area = load_area("training")
    right, calls = area.to_device, 0

    def to_device(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        batch = right(*given)
        return batch * 0 if calls % 16 == 4 else batch

    area.to_device = to_device
    return area.loading(rank, **arguments)


def _with_a_tuner(rank: Any, work: str) -> Any:
    """A library that is slower while its tuner is off."""
    from contextlib import contextmanager

    from portagpu.devices.plugin_parts import Tuner, TunerState

    seen = []

    @contextmanager
    def switched(on: bool) -> Any:
        seen.append(on)
        if not on:
            time.sleep(0.02)  # allowed: it is slow
        yield

    tuner = Tuner("demo", work, lambda: TunerState(True, True, False, "here", 3), switched)  # type: ignore[arg-type]
    shown = {name: getattr(rank.gpu.plugin, name) for name in ("telemetry", "shared")}
    rank.gpu.plugin = SimpleNamespace(**shown, tuners=lambda: (tuner,))
    right = matmul.judged_product
    # a CPU without instructions for bfloat16 takes minutes for the shape that GPUs multiply
    matmul.judged_product = lambda gpu, form, m, n, k, seed: right(
        gpu, form, m // 16, n // 16, k, seed
    )
    return load_area("tuning")


def a_tuner_of_products(rank: Any, **arguments: Any) -> Any:
    return _with_a_tuner(rank, "product").library(rank, **arguments)


def a_tuner_of_convolutions(rank: Any, **arguments: Any) -> Any:
    return _with_a_tuner(rank, "convolution").library(rank, **arguments)


def a_tuner_that_makes_products_wrong(rank: Any, **arguments: Any) -> Any:
    right = matmul.multiply

    def multiply(work: matmul.Product) -> None:
        right(work)
        work.result[0, 0] *= 2

    matmul.multiply = multiply
    return _with_a_tuner(rank, "product").library(rank, **arguments)


def inductor_without_a_compiler(rank: Any, **arguments: Any) -> Any:
    area = load_area("tuning")
    area.compile_product = lambda tuned: area.multiply
    return area.inductor(rank, **arguments)


def inductor_that_tunes_wrongly(rank: Any, **arguments: Any) -> Any:
    area = load_area("tuning")
    area.compile_product = lambda tuned: lambda a, b: a @ b + 9 * tuned
    return area.inductor(rank, **arguments)


def burst_that_loses_a_launch(rank: Any, **arguments: Any) -> Any:
    area = load_area("launch")
    right, calls = area.add_one, 0

    def add_one(element: Any) -> None:
        nonlocal calls
        calls += 1
        if calls != 777:
            right(element)

    area.add_one = add_one
    return area.burst(rank, **arguments)


class RecordedGraph:
    """Makes the calls of a capture again: as much of a graph as a CPU can be."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        for function, arguments in self.calls:
            function(*arguments)


def _with_graphs(rank: Any, replays: bool) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self, graph: RecordedGraph) -> None:
            super().__init__()
            self.graph = graph

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            if replays:
                self.graph.calls.append((func, args))
            return func(*args, **(kwargs or {}))

    gpu = rank.gpu
    same = ("synchronize", "capabilities", "plugin", "index", "device", "Event")
    shown = {name: getattr(gpu, name) for name in same}
    rank.gpu = SimpleNamespace(**shown, Graph=RecordedGraph, graph=Recorder)
    return load_area("launch")


def replay_of_a_recorder(rank: Any, **arguments: Any) -> Any:
    return _with_graphs(rank, replays=True).replay(rank, **arguments)


def replay_of_nothing(rank: Any, **arguments: Any) -> Any:
    return _with_graphs(rank, replays=False).replay(rank, **arguments)


def collective_wrong_on_rank_1(rank: Any, **arguments: Any) -> Any:
    area = load_area("collectives")
    right = area.perform

    def perform(exchange: Any) -> None:
        right(exchange)
        if rank.rank == 1:
            exchange.received[-1] += 1

    area.perform = perform
    return area.collective(rank, **arguments)


def collective_that_kills_rank_1(rank: Any, **arguments: Any) -> Any:
    area = load_area("collectives")
    right, calls = area.perform, 0

    def perform(exchange: Any) -> None:
        nonlocal calls
        calls += 1
        if rank.rank == 1 and calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        right(exchange)

    area.perform = perform
    return area.collective(rank, **arguments)


def collective_where_rank_1_hangs(rank: Any, **arguments: Any) -> Any:
    area = load_area("collectives")
    right, calls = area.perform, 0

    def perform(exchange: Any) -> None:
        nonlocal calls
        calls += 1
        if rank.rank == 1 and calls == 3:
            time.sleep(600)
        right(exchange)

    area.perform = perform
    return area.collective(rank, **arguments)


def gemm_that_raises(rank: Any, **arguments: Any) -> Any:
    raise RuntimeError("no such kernel")


def sustain_with_a_flipped_bit(rank: Any, **arguments: Any) -> Any:
    right, calls = matmul.multiply, 0

    def multiply(work: matmul.Product) -> None:
        nonlocal calls
        calls += 1
        right(work)
        # the first is the reference, the second only shows how long one takes
        if calls > 2:
            work.result[5, 5] = -work.result[5, 5]

    matmul.multiply = multiply
    return load_ranks.sustain(rank, **arguments)


def sustain_with_slow_telemetry(rank: Any, **arguments: Any) -> Any:
    """A reading lasts until two more batches have run, or a minute: then the device is idle."""
    batches, running, right = 0, threading.Condition(), timing.Stopwatch.time

    def telemetry(index: int) -> dict[str, float]:
        with running:
            until = batches + 2
            return {"clock_mhz": 1980.0 if running.wait_for(lambda: batches >= until, 60) else 345}

    def counted(self: Any, call: Any, repeats: int) -> float:
        nonlocal batches
        seconds = right(self, call, repeats)
        with running:
            batches += 1
            running.notify_all()
        return seconds

    rank.gpu.plugin = SimpleNamespace(telemetry=telemetry, shared=True)
    timing.Stopwatch.time = counted  # type: ignore[method-assign]
    return load_ranks.sustain(rank, **arguments)


def sustain_by_a_clock_of_steps(rank: Any, **arguments: Any) -> Any:
    """A clock that moves on by 20 ms whenever it is read: a busy machine changes no count."""
    readings = iter(range(1_000_000))
    load_ranks.time = SimpleNamespace(monotonic=lambda: next(readings) * 0.02)
    return load_ranks.sustain(rank, **arguments)


def sustain_during_work_that_slows_it_down(rank: Any, **arguments: Any) -> Any:
    """Products that take 20 ms each from the third on."""
    right, calls = matmul.multiply, 0

    def multiply(work: matmul.Product) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            time.sleep(0.02)  # allowed: it is slow
        right(work)

    matmul.multiply = multiply
    return load_ranks.sustain(rank, **arguments)


def turns_where_rank_2_is_slow(rank: Any, **arguments: Any) -> Any:
    """By a clock that only products move on: what else runs here does not matter."""

    class Scripted(timing.Stopwatch):
        def time(self, call: Any, repeats: int) -> float:
            super().time(call, repeats)
            return repeats * (0.06 if rank.rank == 2 else 0.01)

    load_ranks.Stopwatch = Scripted
    return load_ranks.take_turns(rank, **arguments)


def turns_where_rank_3_is_wrong(rank: Any, **arguments: Any) -> Any:
    right = matmul.multiply

    def multiply(work: matmul.Product) -> None:
        right(work)
        if rank.rank == 3:
            work.result.mul_(2)

    matmul.multiply = multiply
    return load_ranks.take_turns(rank, **arguments)


def _first_launches(made: Any) -> Any:
    """Launches that take as long as ``made(the cache's folder)`` says."""

    def run(rank: Any, **arguments: Any) -> Any:
        area = load_area("tuning")
        area.launch_in_new_process = lambda rank, cache: made(cache)
        return area.triton_cache(rank, **arguments)

    return run


def _cached(cache: Path) -> float:
    warm = cache.is_dir()
    cache.mkdir(exist_ok=True)
    (cache / "kernel").touch()
    return 0.125 if warm else 0.5


def _compiled_again(cache: Path) -> float:
    cache.mkdir(exist_ok=True)
    (cache / f"kernel-{len(list(cache.iterdir()))}").touch()
    return 0.5


first_launches_from_a_cache = _first_launches(_cached)
first_launches_that_compile_again = _first_launches(_compiled_again)
first_launches_that_keep_nothing = _first_launches(lambda cache: 0.5)


def first_launches_in_the_interpreter(rank: Any, **arguments: Any) -> Any:
    """Triton's interpreter needs no device, and keeps nothing."""
    os.environ["TRITON_INTERPRET"] = "1"
    return load_area("tuning").triton_cache(rank, **arguments)


def first_launches_on_a_cpu(rank: Any, **arguments: Any) -> Any:
    os.environ.pop("TRITON_INTERPRET", None)
    return load_area("tuning").triton_cache(rank, **arguments)
