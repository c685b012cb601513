"""The fastest config of a kernel on this device, among those that fit it and give right results."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from portagpu._version import __version__
from portagpu.base.errors import PortagpuError, Unsupported
from portagpu.devices.machine_code import find_compiler
from portagpu.train.kernels import ops, reference
from portagpu.train.kernels.cache import Cache, cache_folder, cache_key
from portagpu.train.kernels.plan import Config, all_configs, candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


class NoConfig(PortagpuError, RuntimeError):
    """No config of a kernel gives the right result here; the message names the kernel."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A function with its oracle and bound, the kind of its configs, and its source module."""

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
"""The functions that :func:`tune` tunes, by name."""

_log = logging.getLogger("portagpu")
_checked: dict[str, Config] = {}
"""The configs that gave the right result in this process, by key."""


def tune(
    name: str,
    *arguments: Any,
    cache: Cache | None = None,
    measure: Callable[[Callable[[], object]], float] | None = None,
) -> Config:
    """The fastest config of ``kernels.<name>(*arguments)`` on the tensors' device.

    ``triton.autotune`` chooses among the configs of the kernel's kind. It leaves out those that do
    not fit the device, or whose result is not within the bound of
    ``portagpu.kernels.reference``. A cached choice is checked again once in each process.

    :param name: the name of a function of :data:`TUNABLE`
    :param arguments: the function's
    :param cache: where the choice is stored; by default the user's cache
    :param measure: the time of a call in ms; by default Triton's benchmark, the median
    :returns: a config for the function's ``config``
    :raises ValueError: for another name, and without a tensor
    :raises NoConfig: if no config gives the right result
    :raises Unsupported: under Triton's interpreter without ``measure``, and as the function
    """
    if name not in TUNABLE:
        raise ValueError(f"{name!r} cannot be tuned; take {', '.join(TUNABLE)}")
    tensors = [each for each in arguments if hasattr(each, "device")]
    if not tensors:
        raise ValueError(f"{name} is tuned for the tensors that it is called with; give them")
    tunable = TUNABLE[name]
    place = ops.place_of(*tensors)
    fitting = candidates(tunable.kind, place.limits)
    key = _key(name, tunable, arguments, place, fitting)
    if key in _checked:
        return _checked[key]
    trial = _Trial(name, tunable, arguments, fitting)
    cache = Cache(cache_folder("tune")) if cache is None else cache
    chosen = _cached_config(cache.get(key), fitting)
    if chosen is None or not trial.right(chosen):
        chosen = _fastest(trial, key, place, measure)
        cache.put(key, {"config": fitting.index(chosen)})
        if cache.problem:
            _log.warning("tuned again in every process: %s", cache.problem)
    _checked[key] = chosen
    return chosen


class _Trial:
    """One call in any config, which Triton's autotuner takes for a kernel.

    The whole function is tuned, because a sum launches twice. ``fn`` is its kernel, which the
    autotuner prints by name, and ``arg_names`` are the arguments of :meth:`run`.
    """

    arg_names: Final = ("key",)

    def __init__(
        self, name: str, tunable: Tunable, arguments: tuple[Any, ...], fitting: tuple[Config, ...]
    ) -> None:
        self.name = name
        self.fn = ops.load_kernel(tunable.module, f"{name}_kernel")
        self.kind = tunable.kind
        self._tunable = tunable
        self._arguments = arguments
        self._fitting = fitting

    def run(self, _key: str, *, config: Config, **_options: object) -> Any:
        """Call the function; Triton's options repeat ``config``."""
        return self._tunable.run(*self._arguments, config=config)

    def right(self, config: Config) -> bool:
        """Whether a config runs and its result is within the bound.

        It runs twice, and the first result is overwritten. The second may get the same memory,
        where an element that the kernel does not write would otherwise be right.
        """
        errors = importlib.import_module("triton.runtime.errors")
        try:
            # before the oracle, because it is the function that refuses arguments
            _fill_with_nonsense(self._tunable.run(*self._arguments, config=config))
            got = self._tunable.run(*self._arguments, config=config)
        except errors.OutOfResources:
            return False
        return _is_within_bound(got, *self._exact_and_bound)

    def prune(self, configs: list[Any], *_named: object, **_options: object) -> list[Any]:
        """Those of Triton's configs that fit and are right."""
        right = [
            each
            for each in configs
            if each.kwargs["config"] in self._fitting and self.right(each.kwargs["config"])
        ]
        if not right:
            raise NoConfig(
                f"no config of {self.name} gives the right result on this device: report it"
            )
        return right

    @cached_property
    def _exact_and_bound(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._tunable.exact(*self._arguments), self._tunable.bound(*self._arguments)


def _fill_with_nonsense(result: torch.Tensor) -> None:
    import torch

    result.fill_(math.nan if result.is_floating_point() else torch.iinfo(result.dtype).min)


def _is_within_bound(got: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> bool:
    """Whether a result is within the bound; a NaN agrees with a NaN only, an int with itself."""
    if not exact.is_floating_point():
        return bool((got == exact).all())
    got = got.double()
    near = (got - exact).abs() <= bound
    same = (got == exact) | (got.isnan() & exact.isnan())
    return bool((near | same).all())


def _fastest(
    trial: _Trial,
    key: str,
    place: ops.Place,
    measure: Callable[[Callable[[], object]], float] | None,
) -> Config:
    """The config that ``triton.autotune`` chooses from those that are not pruned."""
    if measure is None and place.gpu is None:
        raise Unsupported("Triton's interpreter is not timed: give measure=, or tune on a GPU")
    triton = importlib.import_module("triton")
    warp_size = place.limits.warp_size
    tuner = triton.autotune(
        configs=[
            triton.Config({"config": each}, num_warps=each.warps(warp_size), num_stages=each.stages)
            for each in all_configs(trial.kind)
        ],
        key=["key"],
        prune_configs_by={"early_config_prune": trial.prune},
        do_bench=None if measure is None else _quantile_timer(measure),
    )(trial)
    # what TRITON_CACHE_AUTOTUNING turns on keeps a choice that nothing checks again
    tuner.cache_results = False
    with place.current():
        tuner.run(key)
    chosen: Config = tuner.best_config.kwargs["config"]
    return chosen


def _quantile_timer(
    measure: Callable[[Callable[[], object]], float],
) -> Callable[..., list[float]]:
    """``measure`` as Triton's autotuner calls it: a time for each quantile."""

    def bench(call: Callable[[], object], quantiles: tuple[float, ...]) -> list[float]:
        return [float(measure(call))] * len(quantiles)

    return bench


def _key(
    name: str,
    tunable: Tunable,
    arguments: tuple[Any, ...],
    place: ops.Place,
    fitting: tuple[Config, ...],
) -> str:
    """The cache key: kernel, arguments, device, and the versions that the code depends on."""
    import torch

    gpu, compiler = place.gpu, find_compiler()
    spec = importlib.util.find_spec(f"portagpu.train.kernels.source.{tunable.module}")
    source = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    stated = [
        [list(each.shape), list(each.stride()), str(each.dtype)]
        if isinstance(each, torch.Tensor)
        else None  # a number changes no code
        for each in arguments
    ]
    device: list[object] = ["interpreter"]
    if gpu is not None:
        # a slice or a partition has another number of units than its product
        device = [gpu.arch.name, gpu.product, repr(gpu.part), dict(gpu.versions)]
    versions = [__version__, str(torch.__version__), compiler.version, compiler.stamp]
    return cache_key("tune", name, stated, device, versions, source, repr(fitting))


def _cached_config(found: Mapping[str, Any] | None, fitting: tuple[Config, ...]) -> Config | None:
    """The config in the cache, if it is one of those that fit."""
    at = None if found is None else found.get("config")
    return fitting[at] if type(at) is int and 0 <= at < len(fitting) else None
