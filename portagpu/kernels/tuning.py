"""The fastest config of a kernel on this device, among those that fit it and give right results."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.errors import PortagpuError
from portagpu.kernels import ops, reference
from portagpu.kernels.cache import Cache, cache_folder, key_of
from portagpu.kernels.compiler import find_compiler
from portagpu.kernels.plan import Config, candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


class NoConfig(PortagpuError, RuntimeError):
    """No config of a kernel runs here with the right result; the message names the kernel."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A function with its oracle and bound, the kind of its configs, and where its source is."""

    run: Callable[..., Any]
    exact: Callable[..., Any]
    bound: Callable[..., Any]
    kind: str
    module: str


TUNABLE: Final[Mapping[str, Tunable]] = {
    "triad": Tunable(ops.triad, reference.triad, reference.triad_bound, "stream", "streams"),
    "sum": Tunable(ops.sum, reference.sum, reference.sum_bound, "sum", "reduction"),
    "softmax": Tunable(ops.softmax, reference.softmax, reference.softmax_bound, "row", "rows"),
    "rms_norm": Tunable(ops.rms_norm, reference.rms_norm, reference.rms_norm_bound, "row", "rows"),
    "matmul": Tunable(ops.matmul, reference.matmul, reference.matmul_bound, "matmul", "products"),
}
"""What :func:`tune` takes, by name."""

_checked: dict[str, Config] = {}
"""The configs that this process has seen give the right result, by key."""


def tune(
    name: str,
    *arguments: Any,
    cache: Cache | None = None,
    measure: Callable[[Callable[[], object]], float] | None = None,
) -> Config:
    """The fastest config of ``kernels.<name>(*arguments)`` on the tensors' device.

    Every config that fits the device runs once, and is dropped unless its result is within the
    bound of :mod:`portagpu.kernels.reference`; the others are timed by ``measure``, by default the
    median of ``triton.testing.do_bench`` in milliseconds. The choice is kept in ``cache`` (by
    default the user's) and, taken from there, checked again once in each process.

    Raises ValueError for a name that is not in ``TUNABLE``, NoConfig where no config is right, and
    what the function itself raises.
    """
    if name not in TUNABLE:
        raise ValueError(f"{name!r} cannot be tuned; take {', '.join(TUNABLE)}")
    tunable = TUNABLE[name]
    tensors = [each for each in arguments if hasattr(each, "device")]
    place = ops.place_of(*tensors)
    fitting = candidates(tunable.kind, place.limits)
    key = _key(name, tunable, arguments, place, fitting)
    if key in _checked:
        return _checked[key]
    exact, bound = tunable.exact(*arguments), tunable.bound(*arguments)

    def right(config: Config) -> bool:
        return _agrees(tunable, arguments, config, exact, bound)

    cache = Cache(cache_folder("tune")) if cache is None else cache
    chosen = _kept(cache.get(key), fitting)
    if chosen is None or not right(chosen):
        chosen = _fastest(name, tunable, arguments, [c for c in fitting if right(c)], measure)
        cache.put(key, {"config": fitting.index(chosen)})
    _checked[key] = chosen
    return chosen


def _agrees(
    tunable: Tunable,
    arguments: tuple[Any, ...],
    config: Config,
    exact: torch.Tensor,
    bound: torch.Tensor,
) -> bool:
    """Whether a config runs and its result is within the bound; a NaN agrees with a NaN only."""
    errors = importlib.import_module("triton.runtime.errors")
    try:
        got = tunable.run(*arguments, config=config).double()
    except errors.OutOfResources:
        return False
    near = (got - exact).abs() <= bound
    same = (got == exact) | (got.isnan() & exact.isnan())
    return bool((near | same).all())


def _fastest(
    name: str,
    tunable: Tunable,
    arguments: tuple[Any, ...],
    right: list[Config],
    measure: Callable[[Callable[[], object]], float] | None,
) -> Config:
    if not right:
        raise NoConfig(f"no config of {name} gives the right result on this device: report it")
    if measure is None:
        bench = importlib.import_module("triton.testing").do_bench

        def measure(call: Callable[[], object]) -> float:
            return float(bench(call, return_mode="median"))

    times = [measure(lambda c=config: tunable.run(*arguments, config=c)) for config in right]  # type: ignore[misc]
    return right[times.index(min(times))]


def _key(
    name: str,
    tunable: Tunable,
    arguments: tuple[Any, ...],
    place: ops.Place,
    fitting: tuple[Config, ...],
) -> str:
    """Kernel, arguments, device, and the versions of all that made the code."""
    import torch

    gpu, compiler = place.gpu, find_compiler()
    spec = importlib.util.find_spec(f"portagpu.kernels.source.{tunable.module}")
    source = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    stated = [
        [list(each.shape), list(each.stride()), str(each.dtype)]
        if isinstance(each, torch.Tensor)
        else None  # a number changes no code
        for each in arguments
    ]
    device = ["interpreter"] if gpu is None else [gpu.arch.name, gpu.product, dict(gpu.versions)]
    versions = [__version__, str(torch.__version__), compiler.version, compiler.stamp]
    return key_of("tune", name, stated, device, versions, source, repr(fitting))


def _kept(found: Mapping[str, Any] | None, fitting: tuple[Config, ...]) -> Config | None:
    """The config that the cache names, where it names one of those that fit."""
    at = None if found is None else found.get("config")
    return fitting[at] if type(at) is int and 0 <= at < len(fitting) else None
