"""The suite catches broken backends: each fault is a few lines over the good CPU backend."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("torch")

import torch

from portagpu.devices.contract import Capability
from portagpu.devices.precision import (
    Arithmetic,
    Float32Switch,
    Fp8,
    Precision,
    Recipe,
    Scaled,
    Support,
)
from portagpu.devices.sizing import Launch, Sizing
from portagpu.facts.arch import Arch
from portagpu.facts.captures.marked_blocks import Annotation
from portagpu.runs.results.run import Verdict
from portagpu_cpu.backend import CpuBackend, CpuEvent
from tests.support import suite_harness
from tests.support.looped import few

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


class SetsNoStream(CpuBackend):
    def set_stream(self, stream):
        del stream


class DefaultStreamMoves(CpuBackend):
    def default_stream(self):
        return self.current_stream()


class MarksARange(CpuBackend):
    def mark(self, msg):
        self.range_push(msg)


class AlwaysCaptures(CpuBackend):
    def is_current_stream_capturing(self):
        return True


class UsesWhatIsFree(CpuBackend):
    def device_memory_used(self):
        return self.mem_get_info()[0]


class SupportsAll(CpuBackend):
    def supports(self, capability):
        del capability
        return True


class HalfACapability(CpuBackend):
    def get_device_capability(self):
        return (9,)


class NumberIsNoDevice(CpuBackend):
    def current_device(self):
        return self.index


class RuntimeOfNothing(CpuBackend):
    def cudart(self):
        return SimpleNamespace()


class SummaryOfNothing(CpuBackend):
    def memory_summary(self, abbreviated=False):
        del abbreviated
        return ""


class PeersInWords(CpuBackend):
    def device_count(self):
        return 2

    def can_device_access_peer(self, peer_device):
        return f"device {peer_device} is near"


class SeedsTheNext(CpuBackend):
    def manual_seed(self, seed):
        super().manual_seed((seed + 1) % 2**63)


class SeedsNothing(CpuBackend):
    def manual_seed(self, seed):
        del seed


class AlwaysTheSameSeed(CpuBackend):
    def seed(self):
        self.manual_seed(4)
        return 4


class RestoresNoState(CpuBackend):
    def set_rng_state(self, state):
        if len(state) < 100:
            raise RuntimeError("too short")


class SavesALateState(CpuBackend):
    def get_rng_state(self):
        torch.rand(1)
        return super().get_rng_state()


class AcceptsBrokenStates(CpuBackend):
    def set_rng_state(self, state):
        with contextlib.suppress(RuntimeError):
            super().set_rng_state(state)


class KeepsOneState(CpuBackend):
    kept = torch.get_rng_state()

    def get_rng_state(self):
        return self.kept.copy_(super().get_rng_state())


class WaitsWithAValue(CpuBackend):
    def synchronize(self):
        return True


class WaitsByDrawing(CpuBackend):
    def synchronize(self):
        torch.rand(1)


class OwnGenerator(CpuBackend):
    kept = torch.Generator()

    def generator(self):
        return self.kept


class _Memory(CpuBackend):
    def change(self, stats):
        raise NotImplementedError

    def memory_stats(self):
        return self.change(dict(super().memory_stats()))


class PeakLies(_Memory):
    def change(self, stats):
        return {**stats, "allocated_bytes.all.peak": stats["allocated_bytes.all.current"] // 2}


class NeverShrinks(_Memory):
    most = 0

    def change(self, stats):
        NeverShrinks.most = max(NeverShrinks.most, stats["allocated_bytes.all.current"])
        return {key: max(value, NeverShrinks.most) for key, value in stats.items()}


class CountsNothing(_Memory):
    def change(self, stats):
        return dict.fromkeys(stats, 0)


class CountsKibibytes(_Memory):
    def change(self, stats):
        return {key: value // 1024 for key, value in stats.items()}


class LacksKeys(_Memory):
    def change(self, stats):
        return {key: value for key, value in stats.items() if "reserved" not in key}


class ReservesLess(_Memory):
    def change(self, stats):
        return {key: value // 2 if "reserved" in key else value for key, value in stats.items()}


class ForgetsReservedPeak(_Memory):
    def change(self, stats):
        return {**stats, "reserved_bytes.all.peak": stats["reserved_bytes.all.current"]}


class StatsAreAlive(_Memory):
    kept: ClassVar[dict[str, int]] = {}

    def change(self, stats):
        self.kept.update(stats)
        return self.kept


class FreeInFractions(CpuBackend):
    def mem_get_info(self):
        free, total = super().mem_get_info()
        return free / 1.0, total / 1.0


class ResetsNoPeak(CpuBackend):
    def reset_peak_memory_stats(self):
        pass


class FreeAboveTotal(CpuBackend):
    def mem_get_info(self):
        free, total = super().mem_get_info()
        return total, free // 2


class FreeStandsStill(CpuBackend):
    def mem_get_info(self):
        total = super().mem_get_info()[1]
        return total // 2, total


class OtherTotal(CpuBackend):
    def mem_get_info(self):
        free, total = super().mem_get_info()
        return free, 2 * total


class _Elapsed(CpuEvent):
    __slots__ = ()
    change: Any = staticmethod(lambda ms: ms)

    def elapsed_time(self, end_event):
        return type(self).change(super().elapsed_time(end_event))


def _events(change):
    kind = type("Changed", (_Elapsed,), {"__slots__": (), "change": staticmethod(change)})

    class Changed(CpuBackend):
        def Event(self, enable_timing=False, blocking=False, interprocess=False):  # noqa: N802
            del blocking
            return kind(enable_timing, interprocess)

    return Changed


class _Untimed(CpuEvent):
    __slots__ = ()

    def elapsed_time(self, end_event):
        try:
            return super().elapsed_time(end_event)
        except ValueError:
            return 0.0


class TimesWithoutTiming(CpuBackend):
    def Event(self, enable_timing=False, blocking=False, interprocess=False):  # noqa: N802
        del blocking
        return _Untimed(enable_timing, interprocess)


class _Pending(CpuEvent):
    __slots__ = ()

    def query(self):
        return False


class EventsNeverHappen(CpuBackend):
    def Event(self, enable_timing=False, blocking=False, interprocess=False):  # noqa: N802
        del blocking
        return _Pending(enable_timing, interprocess)


class BlockChangesNothing(CpuBackend):
    def stream(self, stream):
        del stream
        return contextlib.nullcontext()


class BlockRestoresNothing(CpuBackend):
    def stream(self, stream):
        if stream is not None:
            self._current.stream.append(stream)
        return contextlib.nullcontext()


class BlockBreaksOnErrors(CpuBackend):
    @contextlib.contextmanager
    def stream(self, stream):
        stack = self._current.stream
        stack.append(self.current_stream() if stream is None else stream)
        yield
        stack.pop()


class OneCurrentForAll(CpuBackend):
    streams: ClassVar[list[Any]] = []

    def current_stream(self):
        return self.streams[-1] if self.streams else super().current_stream()

    @contextlib.contextmanager
    def stream(self, stream):
        self.streams.append(stream)
        yield
        self.streams.pop()


class OneStream(CpuBackend):
    def Stream(self, priority=0):  # noqa: N802
        del priority
        return self.current_stream()


class IgnoresPriority(CpuBackend):
    def Stream(self, priority=0):  # noqa: N802
        del priority
        return super().Stream()


class SilentGraph(CpuBackend):
    def Graph(self):  # noqa: N802
        return SimpleNamespace(replay=lambda: None)

    def graph(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        return contextlib.nullcontext(cuda_graph)


class SilentPin(CpuBackend):
    def pin(self, tensor):
        return tensor


class NoDevices(CpuBackend):
    def device_count(self):
        return 0


class OtherName(CpuBackend):
    def get_device_name(self):
        return ""


class ActivatesNoOther(CpuBackend):
    def current_device(self):
        return 7


class AutocastIsOff(CpuBackend):
    def autocast(self, dtype=None, enabled=True, cache_enabled=None):
        return super().autocast(dtype, False, cache_enabled)


class AutocastInFloat16(CpuBackend):
    def autocast(self, dtype=None, enabled=True, cache_enabled=None):
        del dtype
        return super().autocast(torch.float16, enabled, cache_enabled)


class AutocastTakesABool(CpuBackend):
    def autocast(self, dtype=None, enabled=True, cache_enabled=None):
        if isinstance(dtype, bool):
            dtype, enabled = None, dtype
        return super().autocast(dtype, enabled, cache_enabled)


class ScalesNothing(CpuBackend):
    def GradScaler(self, *arguments, **options):  # noqa: N802
        del arguments, options
        return torch.amp.GradScaler("cpu", enabled=False)


class ForgetsScalerOptions(CpuBackend):
    def GradScaler(self, *arguments, **options):  # noqa: N802
        del arguments, options
        return torch.amp.GradScaler("cpu")


class AlwaysBfloat16(CpuBackend):
    def is_bf16_supported(self, including_emulation=True):
        del including_emulation
        return True


class KnowsNoMemoryError(CpuBackend):
    def is_oom(self, error):
        del error
        return False


class TakesAnyErrorForMemory(CpuBackend):
    def is_oom(self, error):
        return isinstance(error, Exception)


class ProbesNothing(CpuBackend):
    def dtype_support(self, dtype, *, probe=False):
        del probe
        return super().dtype_support(dtype)


class ComputesInBfloat16(CpuBackend):
    def float32_arithmetic(self, operation="matmul"):
        del operation
        return Arithmetic.BF16


class ForgetsScales(CpuBackend):
    def scaled_matmul(self, left, right, out_dtype=None, *, native_only=False):
        left = Scaled(left.data, torch.ones_like(left.scale), left.recipe, left.dim)
        return super().scaled_matmul(left, right, out_dtype, native_only=native_only)


class RoundsProducts(CpuBackend):
    def scaled_matmul(self, left, right, out_dtype=None, *, native_only=False):
        rounded = super().scaled_matmul(left, right, torch.bfloat16, native_only=native_only)
        return rounded.to(out_dtype or torch.bfloat16)


class _Switch(Float32Switch):
    __slots__ = ()
    swallows = False

    def __exit__(self, *error):
        if self.swallows:
            super().__exit__(*error)
        return self.swallows


class _Swallows(_Switch):
    __slots__ = ()
    swallows = True


class SwitchStays(CpuBackend):
    def set_float32_precision(self, mode):
        return _Switch(self.precision, mode)


class SwitchSwallows(CpuBackend):
    def set_float32_precision(self, mode):
        return _Swallows(self.precision, mode)


class MixesFlavours(CpuBackend):
    def scaled_matmul(self, left, right, out_dtype=None, *, native_only=False):
        if left.flavour != right.flavour:
            return left.dequantize(out_dtype) @ right.dequantize(out_dtype)
        return super().scaled_matmul(left, right, out_dtype, native_only=native_only)


class AlwaysScales(Precision):
    def training(self, dtype=None):
        return replace(super().training(dtype), scaler=True)


_ARANGE = torch.arange


class MarksNothing(CpuBackend):
    def annotate(self, name):
        del name
        return contextlib.nullcontext()


class _SwallowsErrors(Annotation):
    def __exit__(self, *error):
        super().__exit__(*error)
        return True


class SwallowsErrors(CpuBackend):
    def annotate(self, name):
        return _SwallowsErrors(name)


class HidesLabels(CpuBackend):
    def labelled_block(self, name, labels, domain="", color=None):
        del labels, domain, color
        return self.annotate(name)


class NeverListens(CpuBackend):
    def listens(self):
        return False


class NamelessProfiler(CpuBackend):
    def attached_profiler(self):
        return ""


class LosesWorkWhileRecording(CpuBackend):
    def profiler_start(self):
        torch.arange = torch.zeros

    def profiler_stop(self):
        torch.arange = _ARANGE


class DepthFromOne(CpuBackend):
    def range_push(self, msg):
        return super().range_push(msg) + 1


class PopsNothing(CpuBackend):
    def range_pop(self):
        return 0


class _Halved(Sizing):
    def launch(self, n):
        plan = super().launch(n)
        return replace(plan, grid=max(0, plan.grid // 2))


class _Unlimited(Sizing):
    def launch(self, n):
        return Launch(n=n, block=1, grid=n, work_per_thread=1, warp_size=1)


class _NegativeToo(Sizing):
    def launch(self, n):
        return super().launch(abs(n))


class _Unchecked(Sizing):
    def check(self, grid, block, *, shared_memory=0):
        pass


class _HalfReduced(Sizing):
    def reduce(self, n, *, item_bytes=4):
        return replace(super().reduce(n, item_bytes=item_bytes), final=None)


class _WarpsOf32(Sizing):
    def launch(self, n):
        return replace(super().launch(n), warp_size=32)


LIMITS = (64, 4, 1024, 2048, 16)


def _precision(**changes):
    """The good table with some dtypes changed."""
    table = {**GOOD_TABLE, **{getattr(torch, name): value for name, value in changes.items()}}
    return Precision(MappingProxyType(table))


GOOD_TABLE = {
    **dict.fromkeys(
        (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        Support.NATIVE,
    ),
    **dict.fromkeys((torch.float32, torch.float64), Support.NATIVE),
    **dict.fromkeys((torch.complex64, torch.complex128), Support.NATIVE),
    **dict.fromkeys((torch.bfloat16, torch.float16), Support.EMULATED),
    **dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2), Support.STORAGE),
}
ALL = frozenset(Capability)
SOME = frozenset({Capability.STREAMS, Capability.EVENTS, Capability.AUTOCAST})
MIXED_FP8 = Precision(
    MappingProxyType(
        {
            **GOOD_TABLE,
            torch.float8_e4m3fn: Support.NATIVE,
            torch.float8_e5m2fnuz: Support.NATIVE,
        }
    ),
    Fp8(torch.float8_e4m3fn, torch.float8_e5m2fnuz),
)

FAULTS: dict[str, tuple[type[CpuBackend], dict[str, Any], str, str]] = {
    # fault: (class, attributes, the case that catches it, what its sentence says)
    "seeds the next number": (
        SeedsTheNext,
        {},
        "rng/random-programs",
        "had the same seed and the same draws before",
    ),
    "ignores seeds": (SeedsNothing, {}, "rng/seed-repeats[rand]", "other numbers"),
    "takes one seed": (AlwaysTheSameSeed, {}, "rng/seed-is-random", "different seeds"),
    "restores no state": (RestoresNoState, {}, "rng/state-restores[before17]", "other numbers"),
    "saves a late state": (
        SavesALateState,
        {},
        "rng/random-programs",
        "had the same seed and the same draws before",
    ),
    "takes a broken state": (AcceptsBrokenStates, {}, "rng/wrong-state-is-refused", "not refused"),
    "has another generator": (OwnGenerator, {}, "rng/seed-repeats[randn]", "other numbers"),
    "has a peak that lies": (PeakLies, {}, "memory/random-programs", "allocated peak"),
    "never shrinks": (
        NeverShrinks,
        {},
        "memory/random-programs",
        "it does not fall when all tensors are gone",
    ),
    "counts nothing": (
        CountsNothing,
        {},
        "memory/random-programs",
        "allocated_bytes.all.current is 0.0 MiB, not between",
    ),
    "counts kibibytes": (
        CountsKibibytes,
        {},
        "memory/random-programs",
        "allocated_bytes.all.current is 0.",
    ),
    "lacks keys": (LacksKeys, {}, "memory/random-programs", "statistics have no reserved"),
    "reserves less": (ReservesLess, {}, "memory/random-programs", "reserved bytes are less than"),
    "forgets the reserved peak": (
        ForgetsReservedPeak,
        {},
        "memory/random-programs",
        "with the tensors that lived",
    ),
    "waits and returns a value": (
        WaitsWithAValue,
        {},
        "streams/random-programs",
        "synchronize() of the device returned True",
    ),
    "resets no peak": (
        ResetsNoPeak,
        {},
        "memory/random-programs",
        "after reset_peak_memory_stats() the allocated peak is",
    ),
    "swaps free and total": (FreeAboveTotal, {}, "memory/random-programs", "bytes are free"),
    "has a free that stands": (FreeStandsStill, {}, "memory/free-follows-allocation", "lowered"),
    "has another total": (OtherTotal, {}, "memory/random-programs", "the properties state"),
    "runs backwards": (
        _events(lambda ms: -ms),
        {},
        "streams/random-programs",
        "ms, and the host saw",
    ),
    "times in seconds": (
        _events(lambda ms: ms / 1e3),
        {},
        "streams/random-programs",
        "ms, and the host saw",
    ),
    "times in microseconds": (
        _events(lambda ms: ms * 1e3),
        {},
        "streams/random-programs",
        "ms, and the host saw",
    ),
    "has no sign": (_events(abs), {}, "streams/random-programs", "elapsed_time() from event"),
    "rounds times": (_events(round), {}, "streams/random-programs", "is a int"),
    "times untimed events": (
        TimesWithoutTiming,
        {},
        "streams/random-programs",
        "though one of them was made without enable_timing|though one of them has no record",
    ),
    "has events that stay": (EventsNeverHappen, {}, "streams/random-programs", "has not happened"),
    "has blocks without effect": (
        BlockChangesNothing,
        {},
        "streams/random-programs",
        "inside a block of",
    ),
    "has blocks without end": (
        BlockRestoresNothing,
        {},
        "streams/random-programs",
        "when all blocks have ended another stream is current",
    ),
    "breaks on errors in blocks": (
        BlockBreaksOnErrors,
        {},
        "streams/random-programs",
        "after an error in a block of",
    ),
    "has one stream for threads": (
        OneCurrentForAll,
        {},
        "streams/random-programs",
        "the current stream of another thread is stream 1",
    ),
    "has one stream": (OneStream, {}, "streams/random-programs", "a new stream is the default one"),
    "ignores priorities": (IgnoresPriority, {}, "streams/priorities[priority-1]", "says 0"),
    "has a silent graph": (
        SilentGraph,
        {},
        "identity/unclaimed-calls-are-refused[Graph]",
        "was not refused",
    ),
    "pins nothing silently": (SilentPin, {}, "memory/pinned-copies-are-right[method]", "not claim"),
    "claims graphs that share memory": (
        CpuBackend,
        {"capabilities": ALL},
        "graphs/pool-is-shared[method]",
        "claims graphs, but it raised Unsupported",
    ),
    "claims graphs": (
        CpuBackend,
        {"capabilities": ALL},
        "streams/random-programs",
        "it raised Unsupported: the cpu backend does not capture graphs",
    ),
    "claims pinned memory": (
        SilentPin,
        {"capabilities": ALL},
        "memory/pinned-copies-are-right[method]",
        "not in page-locked memory",
    ),
    "does unclaimed resets": (
        CpuBackend,
        {"capabilities": SOME},
        "memory/peak-resets[method]",
        "must raise Unsupported",
    ),
    "claims what is not a capability": (
        CpuBackend,
        {"capabilities": frozenset({"teleport"})},
        "identity/capabilities-are-known",
        "teleport",
    ),
    "has no device": (NoDevices, {}, "identity/device-count", "devices"),
    "has another index": (ActivatesNoOther, {}, "identity/current-device-in-range", "7"),
    "has no name": (OtherName, {}, "identity/name-is-not-empty", "empty"),
    "has another warp size": (
        CpuBackend,
        {"arch": Arch("cpu", "x86-64", 32)},
        "identity/warp-size-is-the-devices",
        "warp sizes differ",
    ),
    "has an arch with features": (
        CpuBackend,
        {"arch": Arch("amd", "gfx942:sramecc+:xnack-", 1)},
        "identity/arch-is-the-bare-name",
        "should be 'gfx942'",
    ),
    "is not its target": (
        CpuBackend,
        {"arch": Arch("cpu", "s390x", 1)},
        "identity/arch-agrees-with-target",
        "s390x",
    ),
    "has an empty product": (CpuBackend, {"product": ""}, "identity/unknown-is-none", "None"),
    "has another torch": (CpuBackend, {"versions": {"torch": "1.0"}}, "identity/versions", "1.0"),
    "has half a grid": (
        CpuBackend,
        {"sizing": _Halved(*LIMITS)},
        "kernels/launch-covers-every-element[n1000]",
        "of 1000 elements",
    ),
    "has an endless grid": (
        CpuBackend,
        {"sizing": _Unlimited(*LIMITS)},
        "kernels/launch-fills-the-device-once",
        "more than the",
    ),
    "launches less than nothing": (
        CpuBackend,
        {"sizing": _NegativeToo(*LIMITS)},
        "kernels/launch-of-nothing",
        "-1 elements was not refused",
    ),
    "checks no launch": (
        CpuBackend,
        {"sizing": _Unchecked(*LIMITS)},
        "kernels/launch-beyond-a-limit",
        "was not refused",
    ),
    "reduces halfway": (
        CpuBackend,
        {"sizing": _HalfReduced(*LIMITS)},
        "kernels/reduce-leaves-one-result[n1000]",
        "partial results are left",
    ),
    "counts other warps": (
        CpuBackend,
        {"sizing": _WarpsOf32(*LIMITS)},
        "kernels/launch-has-whole-warps",
        "warps",
    ),
    "has no units": (
        CpuBackend,
        {"sizing": Sizing(1, 0, 1, 1, 1)},
        "kernels/sizing-limits",
        "is 0",
    ),
    "claims fp8 arithmetic": (
        CpuBackend,
        {"precision": _precision(float8_e4m3fn=Support.NATIVE)},
        "precision/arithmetic-works[float8_e4m3fn]",
        "no fp8 instructions",
    ),
    "claims fp8 without a pair": (
        CpuBackend,
        {"precision": _precision(float8_e4m3fn=Support.NATIVE)},
        "precision/fp8-flavour-is-native",
        "native are",
    ),
    "mixes fp8 flavours": (
        CpuBackend,
        {"precision": MIXED_FP8},
        "precision/fp8-flavour-is-one",
        "two flavours",
    ),
    "says that float32 is stored": (
        CpuBackend,
        {"precision": _precision(float32=Support.STORAGE)},
        "precision/support-as-it-runs[float32]",
        "stated as storage and ran as emulated",
    ),
    "probes nothing": (
        ProbesNothing,
        {},
        "precision/support-as-it-runs[float64]",
        "was not run",
    ),
    "claims a recipe": (
        CpuBackend,
        {"precision": Precision(GOOD_TABLE, recipes=frozenset({Recipe.ROW}))},
        "precision/recipes-run[row]",
        "no fp8 instructions",
    ),
    "claims recipes without fp8": (
        CpuBackend,
        {"precision": Precision(GOOD_TABLE, recipes=frozenset({Recipe.ROW}))},
        "precision/recipes-of-target",
        "without fp8 instructions",
    ),
    "claims tf32": (
        CpuBackend,
        {"precision": Precision(GOOD_TABLE, tf32=Arithmetic.TF32)},
        "precision/tf32-of-target",
        "has ieee, not tf32",
    ),
    "aligns to twelve": (
        CpuBackend,
        {"precision": Precision(GOOD_TABLE, alignment={torch.float32: 12})},
        "precision/alignment",
        "aligned to 12 elements",
    ),
    "always scales gradients": (
        CpuBackend,
        {"precision": AlwaysScales(GOOD_TABLE)},
        "precision/training-choice",
        "a scaler for",
    ),
    "knows no memory error": (
        KnowsNoMemoryError,
        {},
        "memory/too-much-is-an-error",
        "does not know",
    ),
    "takes any error for memory": (
        TakesAnyErrorForMemory,
        {},
        "memory/is-oom-reads-every-vendor[method]",
        "for one",
    ),
    "computes float32 in bfloat16": (
        ComputesInBfloat16,
        {},
        "precision/float32-switch[ieee-matmul]",
        "ran in bf16",
    ),
    "writes PCI addresses as NVML does": (
        CpuBackend,
        {"pci": "00000000:3B:00.0"},
        "identity/pci-address-has-one-form",
        "'00000000:3B:00.0'",
    ),
    # which of the two shows first is up to how many programs the time allows
    "keeps one state": (
        KeepsOneState,
        {},
        "rng/random-programs",
        "refuses a state that was saved|which had the same seed and the same draws before",
    ),
    "draws while it waits": (
        WaitsByDrawing,
        {},
        "rng/questions-draw-nothing",
        "moved by synchronize()",
    ),
    "has statistics that live on": (
        StatsAreAlive,
        {},
        "memory/random-programs",
        "the statistics of before changed in",
    ),
    "has fractions of bytes": (FreeInFractions, {}, "memory/random-programs", "the free memory is"),
    "rounds float32 products to bfloat16": (
        RoundsProducts,
        {},
        "precision/scaled-matmul-keeps-float32",
        "add up to [272.0]",
    ),
    "leaves the switch as it set it": (
        SwitchStays,
        {},
        "precision/float32-switch-restores[ieee]",
        "torch's settings were ('high'",
    ),
    "swallows errors under the switch": (
        SwitchSwallows,
        {},
        "precision/float32-switch-passes-errors",
        "was not refused",
    ),
    "forgets scales": (
        ForgetsScales,
        {},
        "precision/scaled-matmul-is-exact[row-e4m3-e4m3]",
        "are wrong",
    ),
    "mixes flavours in a product": (
        MixesFlavours,
        {},
        "precision/flavours-do-not-mix",
        "was not refused",
    ),
    "denies a dtype": (
        CpuBackend,
        {"precision": _precision(float32=Support.NONE)},
        "precision/storage-holds[float32]",
        "was not refused",
    ),
    "claims what is not a level": (
        CpuBackend,
        {"precision": _precision(float32="maybe")},
        "precision/support-is-a-level[float32]",
        "maybe",
    ),
    "always has bfloat16": (
        AlwaysBfloat16,
        {"precision": _precision()},
        "precision/bf16-support[method]",
        "hardware support True",
    ),
    "has autocast off": (
        AutocastIsOff,
        {},
        "precision/autocast-programs",
        "autocast is off and not on",
    ),
    "autocasts to float16": (
        AutocastInFloat16,
        {},
        "precision/autocast-programs",
        "autocast computes in float16 and not in bfloat16",
    ),
    "takes a bool for a dtype": (
        AutocastTakesABool,
        {},
        "precision/autocast-of-a-bool-is-refused",
        "was not refused",
    ),
    "scales nothing": (ScalesNothing, {}, "precision/scaler-programs", "says False"),
    "forgets options": (
        ForgetsScalerOptions,
        {},
        "precision/scaler-programs",
        "scale is 65536 ",
    ),
    "marks nothing": (MarksNothing, {}, "profiling/annotate-marks", "marks nothing"),
    "swallows errors": (SwallowsErrors, {}, "profiling/random-programs", "swallowed the error"),
    "hides labels": (
        HidesLabels,
        {},
        "profiling/annotate-tells-labels[function]",
        "in the trace",
    ),
    "never listens": (
        NeverListens,
        {},
        "profiling/random-programs",
        "listens() is not True while",
    ),
    "marks no steps of a schedule": (
        NeverListens,
        {},
        "profiling/schedule-records-its-steps",
        "these are recorded: []",
    ),
    "has a nameless profiler": (
        NamelessProfiler,
        {},
        "profiling/attached-profiler-has-a-name",
        "is called ''",
    ),
    "loses work while it records": (
        LosesWorkWhileRecording,
        {},
        "profiling/region-keeps-the-work",
        "inside a region the sum is 0",
    ),
    "counts depth from one": (DepthFromOne, {}, "profiling/random-programs", "is 1 at depth 0"),
    "sets no stream": (SetsNoStream, {}, "streams/random-programs", "after set_stream() of"),
    "has a default stream that moves": (
        DefaultStreamMoves,
        {},
        "streams/random-programs",
        "the default stream is another one",
    ),
    "opens a range for a mark": (
        MarksARange,
        {},
        "profiling/mark-leaves-no-range[method]",
        "depth 1",
    ),
    "captures nothing and says so": (
        AlwaysCaptures,
        {},
        "streams/random-programs",
        "is_current_stream_capturing() is True while no capture is open",
    ),
    "uses what is free": (UsesWhatIsFree, {}, "memory/random-programs", "device_memory_used is"),
    "supports what it does not claim": (
        SupportsAll,
        {},
        "identity/supports-is-what-is-claimed[method]",
        "is not False",
    ),
    "has half a capability": (
        HalfACapability,
        {},
        "identity/device-capability-is-a-pair",
        "is not a pair",
    ),
    "numbers its device as no device": (
        NumberIsNoDevice,
        {},
        "identity/current-device-is-an-argument[method]",
        "accelerator",
    ),
    "has a runtime without a profiler": (
        RuntimeOfNothing,
        {},
        "profiling/runtime-has-the-profilers-calls",
        "has no cudaProfilerStart",
    ),
    "has a summary of nothing": (
        SummaryOfNothing,
        {},
        "memory/summary-is-a-text[method]",
        "says no more than",
    ),
    "names peers in words": (
        PeersInWords,
        {},
        "identity/peers-are-told",
        "to device 1 it says",
    ),
    "is a GPU that no mask hides": (
        CpuBackend,
        {"arch": Arch("nvidia", "sm_90", 1)},
        "visibility/child-without-devices-says-why",
        "the child sees [1, None, None]",
    ),
    "pops nothing": (PopsNothing, {}, "profiling/random-programs", "range_pop()"),
}


def _is_caught(monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path) -> tuple[Verdict, str]:
    kind, attributes, name, _ = FAULTS[fault]
    gpu = suite_harness.open_device(monkeypatch, kind, **attributes)
    result = suite_harness.run(gpu, name, tmp_path, ("FAULTS", fault))
    return result.verdict, result.reason


@pytest.mark.processes(1, "some cases run in a child")
@pytest.mark.parametrize("fault", few(FAULTS))
def test_backend_with_a_fault_fails_the_case_for_it(
    monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path
) -> None:
    fails_the_case_for_it(monkeypatch, fault, tmp_path)


def fails_the_case_for_it(monkeypatch: pytest.MonkeyPatch, fault: str, tmp_path: Path) -> None:
    *_, name, sentences = FAULTS[fault]
    verdict, reason = _is_caught(monkeypatch, fault, tmp_path)
    assert verdict is Verdict.FAIL, f"a backend that {fault} is {verdict} in {name}: {reason}"
    reported = any(sentence in reason for sentence in sentences.split("|"))
    assert reported, f"the sentence of {name} does not name the fault: {reason}"


CASES = sorted({name for _, _, name, _ in FAULTS.values()})


@pytest.mark.parametrize("name", few(CASES))
def test_good_backend_does_not_fail_the_case(
    monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    does_not_fail(monkeypatch, name, tmp_path)


def does_not_fail(monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path) -> None:
    gpu = suite_harness.open_device(monkeypatch)
    result = suite_harness.run(gpu, name, tmp_path, programs=suite_harness.WELL)
    assert result.verdict in (Verdict.PASS, Verdict.SKIP), f"{name}: {result.reason}"


class _Nothing(CpuBackend):
    """A backend whose every method answers None."""


for _name, _method in inspect.getmembers(CpuBackend, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(_Nothing, _name, lambda self, *arguments, **options: None)
