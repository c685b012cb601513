"""The training surface: torch's names and meanings, on every device.

Written once over the primitives of :class:`portagpu.devices.contract.Backend`; it returns torch's
own objects wherever they work on the device. How a CPU differs is listed in one place, the
docstring of ``portagpu_cpu.backend.CpuBackend``.

A handle is one device for life, so its methods take no device; the functions of the same names in
:mod:`portagpu` take torch's optional ``device`` argument and default to the current device.
"""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from portagpu.base.environment import shared_count
from portagpu.devices import oom
from portagpu.devices.optional import OptionalCalls
from portagpu.devices.precision import Support
from portagpu.devices.precision.model import dtype_support
from portagpu.devices.precision.products import (
    Float32Switch,
    measure_arithmetic,
    product_function,
    scaled_matmul,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from portagpu.devices.collectives.comm import Comm
    from portagpu.devices.precision import Arithmetic, DtypeSupport, Precision, Scaled
    from portagpu.devices.sizing import Sizing
    from portagpu.facts.arch import Arch
    from portagpu.facts.capability import Capability
    from portagpu.facts.targets import Target


_F = TypeVar("_F", bound="Callable[..., object]")


def run_by_the_compiler(function: _F) -> _F:
    """Let torch.compile call this function during compilation, and treat the result as constant.

    The effect is that of ``torch.compiler.assume_constant_result``, without importing torch. It is
    for one-time decisions that use locks, files and entry points, which a compiler cannot trace.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


class Ranges(threading.local):
    """The open profiler ranges of each thread, innermost last."""

    def __init__(self) -> None:
        self.open: list[AbstractContextManager[Any]] = []


_ranges: Final = Ranges()
"""Of all devices, because a program may choose another one in between."""


def push_range(block: AbstractContextManager[Any]) -> int:
    """Enter the block, which :func:`pop_range` leaves; returns its depth, from 0."""
    block.__enter__()
    _ranges.open.append(block)
    return len(_ranges.open) - 1


def pop_range() -> int:
    """Leave the innermost block of this thread; returns its depth, from 0.

    Raises IndexError when none is open.
    """
    if not _ranges.open:
        raise IndexError("range_pop: this thread has no range open on the device")
    _ranges.open.pop().__exit__(None, None, None)
    return len(_ranges.open)


class NoAutocast(ContextDecorator):
    """``autocast(enabled=False)`` on a device without autocast: it has no effect."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


def checked_autocast(
    device_type: str,
    dtype: torch.dtype | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    any_dtype: bool = False,
) -> torch.autocast:
    """``torch.autocast``, which needs no opened device, with what :meth:`Training.autocast` raises.

    :param device_type: the type of ``torch.device``.
    :param dtype: as there, with the others.
    :param any_dtype: whether torch casts to other dtypes too, as to float32 on a GPU.
    """
    import torch

    if isinstance(dtype, bool):
        raise TypeError(f"the first argument of autocast is dtype: write enabled={dtype}")
    if dtype is torch.float32 and not any_dtype:
        return torch.autocast(device_type, enabled=False)
    if enabled and not any_dtype and dtype not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast computes in float16 or bfloat16, not in {dtype}")
    return torch.autocast(device_type, dtype, enabled, cache_enabled)


def checked_scaler(device_type: str, init_scale: float, *options: Any) -> torch.amp.GradScaler:
    """``torch.amp.GradScaler``, with what :meth:`Training.GradScaler` raises.

    :param device_type: the type of ``torch.device``.
    :param init_scale: as there, with the others.
    """
    import torch

    if isinstance(init_scale, str):
        raise TypeError(f"GradScaler knows its device: leave {init_scale!r} out")
    return torch.amp.GradScaler(device_type, init_scale, *options)


class Training(OptionalCalls):
    """The training calls of one device. All sizes are bytes, all seeds are Python ints."""

    __slots__ = ()

    if TYPE_CHECKING:
        index: int
        device: torch.device
        arch: Arch
        product: str | None
        vendor: str | None
        target: Target | None
        capabilities: frozenset[Capability]
        precision: Precision
        comm: Comm
        sizing: Sizing
        uuid: str | None
        pci: str | None
        versions: Mapping[str, str | None]
        plugin: Any

        _known_capabilities: tuple[str, ...]

        def get_device_properties(self) -> Any: ...
        def mem_get_info(self) -> tuple[int, int]: ...
        def memory_stats(self) -> Mapping[str, int]: ...
        def generator(self) -> torch.Generator: ...
        def annotate(self, name: str) -> AbstractContextManager[Any]: ...

    def _range(self, msg: str) -> AbstractContextManager[Any]:
        """A range under torch's names of them, which know no domains."""
        return self.annotate(msg)

    @run_by_the_compiler
    def device_count(self) -> int:
        """The number of devices of this backend: at least 1.

        A device that all ranks share counts as often as
        :func:`portagpu.base.environment.shared_count` says."""
        counted: int = self.plugin.count()
        return max(counted, shared_count() if self.plugin.shared else 1)

    def current_device(self) -> int:
        """The index of this device."""
        return self.index

    def get_device_name(self) -> str:
        """The product's name as the device reports it, never empty.

        A driver may report none: then it is the name of the product that the device's architecture,
        memory and units are, and of its vendor and architecture where no product is known.
        """
        name: str = self.get_device_properties().name
        return name or self.product or f"{self.arch.vendor} {self.arch.name}"

    def memory_allocated(self) -> int:
        """Memory that tensors of this process hold on the device now."""
        return self.memory_stats()["allocated_bytes.all.current"]

    def max_memory_allocated(self) -> int:
        """The most that :meth:`memory_allocated` was since the start or the last reset."""
        return self.memory_stats()["allocated_bytes.all.peak"]

    def memory_reserved(self) -> int:
        """Memory that the allocator of this process holds on the device now."""
        return self.memory_stats()["reserved_bytes.all.current"]

    def max_memory_reserved(self) -> int:
        """The most that :meth:`memory_reserved` was since the start or the last reset."""
        return self.memory_stats()["reserved_bytes.all.peak"]

    def manual_seed(self, seed: int) -> None:
        """Seed the device's default generator."""
        self.generator().manual_seed(seed)

    def seed(self) -> int:
        """Seed the device's default generator from the system's randomness; returns the seed."""
        return self.generator().seed()

    def initial_seed(self) -> int:
        """The seed that the device's default generator was last given."""
        return self.generator().initial_seed()

    def get_rng_state(self) -> torch.Tensor:
        """The state of the device's default generator: a uint8 tensor of shape (n,) on the CPU."""
        return self.generator().get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put the device's default generator into a state that :meth:`get_rng_state` gave."""
        self.generator().set_state(state)

    def autocast(
        self,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> torch.autocast | NoAutocast:
        """``torch.autocast`` for this device.

        :param dtype: float16 or bfloat16; None is torch's default for the device's type, and
            float32 casts nothing.
        :param enabled: False is a block that changes nothing, on every device.
        :param cache_enabled: whether casts of weights are kept inside the block; None is torch's
            setting.
        :returns: a context manager.
        :raises TypeError: for a bool as ``dtype``.
        :raises ValueError: for a dtype with which torch would only warn and compute as before.
        :raises Unsupported: where AUTOCAST is not claimed, unless ``enabled`` is False.
        """
        if not self.supports("autocast") and not isinstance(dtype, bool):
            if enabled:
                self._raise_unsupported(
                    "has no autocast; cast the model, or run with enabled=False"
                )
            return NoAutocast()
        return checked_autocast(self.device.type, dtype, enabled, cache_enabled)

    def GradScaler(  # noqa: N802 - torch's name
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> torch.amp.GradScaler:
        """``torch.amp.GradScaler`` for this device, with torch's options and defaults.

        :param init_scale: the factor of the loss at first.
        :param growth_factor: by what the factor is multiplied after ``growth_interval`` steps in a
            row without infinities and NaN.
        :param backoff_factor: by what it is multiplied after a step with one.
        :param growth_interval: the number of these steps.
        :param enabled: False scales nothing, on every device.
        :raises TypeError: for a device as the first argument, which ``torch.amp.GradScaler`` takes.
        :raises Unsupported: where AUTOCAST is not claimed, unless ``enabled`` is False.
        """
        if enabled and not self.supports("autocast") and not isinstance(init_scale, str):
            self._raise_unsupported(
                "scales no gradients; train in float32, or run with enabled=False"
            )
        return checked_scaler(
            self.device.type, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Whether bfloat16 arithmetic runs; ``including_emulation=False`` asks for hardware."""
        import torch

        support = self.precision.support(torch.bfloat16)
        native = support is Support.NATIVE
        return native or (including_emulation and support is Support.EMULATED)

    def dtype_support(self, dtype: torch.dtype, *, probe: bool = False) -> DtypeSupport:
        """The stated support of a dtype, and on request what the device does with it.

        :param dtype: any ``torch.dtype``.
        :param probe: whether to run it on the device too, and wait for the result.
        :returns: both; its ``disagreement`` says where the device differs from its facts.
        """
        return dtype_support(self.precision, dtype, self.device, probe=probe)

    def set_float32_precision(self, mode: str) -> Float32Switch:
        """Run float32 products, convolutions and RNNs of this process in "ieee" or in "tf32".

        "ieee" is float32. "tf32" is the fastest that keeps at least 11 significant bits of the
        inputs: TF32, XF32 or three products of bfloat16, and float32 on a device that has none of
        them, which the result's ``arithmetic`` and ``reason`` say. It holds from now on; as a
        context manager the result restores torch's switches.
        """
        return Float32Switch(self.precision, mode)

    def float32_arithmetic(self, operation: str = "matmul") -> Arithmetic:
        """The actual arithmetic of a float32 "matmul" or "conv", measured with exact inputs.

        See :func:`portagpu.devices.precision.products.measure_arithmetic`. Waits for the device.
        """
        return measure_arithmetic(product_function(operation), self.device)

    def scaled_matmul(
        self,
        left: Scaled,
        right: Scaled,
        out_dtype: torch.dtype | None = None,
        *,
        native_only: bool = False,
    ) -> torch.Tensor:
        """The product of two fp8 matrices with their scales, on every device.

        With the device's fp8 instructions where ``precision.recipes`` has the recipe, else in
        bfloat16: see :func:`portagpu.devices.precision.products.scaled_matmul`.

        :param left: shape (M, K).
        :param right: shape (K, N).
        :param out_dtype: bfloat16, float16 or float32; None is bfloat16.
        :param native_only: whether to raise Unsupported where the device has no instruction for it.
        :returns: shape (M, N), in ``out_dtype``.
        :raises ValueError: for another dtype, for shapes that do not fit and for a mixture of
            flavours.
        :raises Unsupported: with ``native_only``, and the reason.
        """
        return scaled_matmul(self.precision, left, right, out_dtype, native_only=native_only)

    def is_oom(self, error: BaseException) -> bool:
        """Whether ``error`` says that memory is exhausted: :func:`portagpu.is_oom`."""
        return oom.is_oom(error)

    def range_push(self, msg: str) -> int:
        """Open a range as ``torch.cuda.nvtx.range_push`` does; returns its depth, from 0."""
        return push_range(self._range(msg))

    def range_pop(self) -> int:
        """Close the innermost range of this thread; returns its depth, from 0.

        Raises IndexError when none is open.
        """
        return pop_range()

    def mark(self, msg: str) -> None:
        """Mark this moment for the vendor's profiler, as ``torch.cuda.nvtx.mark`` does.

        Nothing inside ``torch.compile``.
        """
        with self._range(msg):
            pass

    def supports(self, capability: str) -> bool:
        """Whether the device claims that capability, for instance "pinned-memory".

        Raises ValueError with the known ones for another word.
        """
        if capability in self.capabilities:
            return True
        if capability not in self._known_capabilities:
            raise ValueError(
                f"unknown capability {capability!r}; choose one of "
                f"{', '.join(self._known_capabilities)}"
            )
        return False

    def device_memory_used(self) -> int:
        """Bytes of the device's memory in use by all processes."""
        free, total = self.mem_get_info()
        return total - free

    def memory_summary(self, abbreviated: bool = False) -> str:
        """The memory of this process as a table of text."""
        del abbreviated
        rows = [f"{self.name}, {self.device}: memory of this process in MiB", f"{'':<11}now   peak"]
        stats = self.memory_stats()
        for kind in ("allocated", "reserved"):
            now, peak = (stats[f"{kind}_bytes.all.{key}"] >> 20 for key in ("current", "peak"))
            rows.append(f"{kind:<9}{now:>6} {peak:>6}")
        return "\n".join(rows)
