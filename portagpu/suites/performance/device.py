"""The facts of a device that decide what is measured on it, gathered in a rank, and its caches.

Sizes of caches are of all caches of a level together: a measure keeps every unit busy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from portagpu.devices.precision import Support
from portagpu.devices.precision.formats import FP8_NAMES
from portagpu.runs.engine import OpenedDevice
from portagpu.train.kernels.ops import triton_runs_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from portagpu.devices.contract import Backend
    from portagpu.facts.host import Cache
    from portagpu.facts.targets import Target
    from portagpu.runs.world import Rank


MEMORY: Final = "memory"
"""What lies beyond the last cache."""
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20}
_OF_TARGETS: Final = (
    ("l1_per_unit", "L1", True),
    ("l2_total", "L2", False),
    ("memory_side_total", "memory-side cache", False),
)
"""(fact, name, whether there is one for each unit) of targets, from the nearest outwards."""
DTYPES: Final = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
"""Element types of matrix products, under the names of targets' peaks."""
_TORCH_NAMES: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
}
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """All caches of one level: ``size_bytes`` together."""

    name: str
    size_bytes: int


def levels_of_host(caches: Iterable[Cache]) -> list[CacheLevel]:
    """The levels that hold data, from the nearest outwards: "L1d", "L2", "L3"."""
    found: dict[tuple[int, str], int] = {}
    for each in sorted(caches, key=lambda cache: cache.level):
        if each.kind in ("data", "unified"):
            name = f"L{each.level}d" if each.kind == "data" else f"L{each.level}"
            key = (each.level, name)
            found[key] = found.get(key, 0) + each.size_bytes * each.instances
    return [CacheLevel(name, size) for (_, name), size in found.items()]


def levels_of_target(target: Target, units: int) -> list[CacheLevel]:
    """The levels that the target states; ``units`` is how many units the device has."""
    found = []
    for key, name, each_unit in _OF_TARGETS:
        fact = target.fact(f"cache.{key}")
        if fact is None or fact.unit not in _UNITS or not isinstance(fact.value, int | float):
            continue
        size = int(fact.value * _UNITS[fact.unit]) * (units if each_unit else 1)
        if size:
            found.append(CacheLevel(name, size))
    return found


def best_by_level(
    levels: Sequence[CacheLevel], working_sets: Sequence[float], values: Sequence[float]
) -> dict[str, float]:
    """The best value of each level: among working sets that it holds and the one before does not.

    Levels that no working set falls into are left out. ``MEMORY`` is beyond the last.
    """
    bounds = [0.0, *(float(level.size_bytes) for level in levels), float("inf")]
    names = [*(level.name for level in levels), MEMORY]
    found: dict[str, float] = {}
    for name, (above, most) in zip(names, pairwise(bounds), strict=True):
        inside = [
            value for size, value in zip(working_sets, values, strict=True) if above < size <= most
        ]
        if inside:
            found[name] = max(inside)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice(OpenedDevice):
    """One device as the suite plans for it.

    ``shared`` is whether all ranks use one; ``support`` maps the dtypes of ``DTYPES`` to
    ``portagpu.devices.precision.Support``; ``triton`` is whether Triton launches on it.
    """

    index: int = 0
    shared: bool = False
    triton: bool = False
    target: str | None = None
    cache_bytes: int | None = None
    """All caches of the last level together."""
    caches: tuple[CacheLevel, ...] = ()
    """From the nearest outwards, as far as the machine's or the target's facts name them."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    support: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    attention: tuple[str, ...] = ("math", "flash", "efficient")
    """torch's back ends of attention, whether they run on this device or not."""
    tuners: tuple[str, ...] = ()
    """Tuning back ends of the vendor's libraries."""
    direct_storage: Mapping[str, str] | None = None
    """Variables with which the vendor's direct storage refuses any other way; None without it."""
    no_peer_copies: Mapping[str, str] = field(default_factory=dict)
    """Variables of the vendor with which collectives do not copy between devices directly."""
    comm: str = ""
    comm_version: str | None = None
    units: int = 0
    """As ``Sizing.unit_count`` counts them."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MeasuredDevice:
        """The device that :func:`describe` returned."""
        caches = tuple(CacheLevel(**each) for each in document["caches"])
        capabilities = tuple(document["capabilities"])
        known = {"capabilities": capabilities, "caches": caches}
        names = {key: tuple(document[key]) for key in ("attention", "tuners")}
        return cls(**{**document, **known, **names})

    @classmethod
    def from_target(cls, target: Target) -> MeasuredDevice:
        """The device that a target's facts describe: for naming what cannot be measured here."""
        known = {dtype for dtype in DTYPES if target.peak(dtype) is not None}
        peaks = known or set(DTYPES) - {"tf32"}
        return cls(
            backend="",
            name=target.id,
            count=2,
            shared=target.arch.vendor == "cpu",
            triton=target.arch.vendor != "cpu",
            product=target.product,
            arch=target.arch.name,
            target=target.id,
            cache_bytes=_cache_of_target(target),
            caches=tuple(levels_of_target(target, 0)),
            support={
                dtype: str(Support.NATIVE if dtype in peaks else Support.NONE) for dtype in DTYPES
            },
            capabilities=("collectives", "events", "pinned-memory"),
        )


def describe(rank: Rank) -> dict[str, Any]:
    """The :class:`MeasuredDevice` of this rank, as JSON has it."""
    gpu = rank.gpu
    free, total = gpu.mem_get_info()
    device = MeasuredDevice(
        backend=gpu.name,
        name=str(gpu.device),
        index=gpu.index,
        uuid=gpu.uuid,
        pci=gpu.pci,
        count=gpu.device_count(),
        shared=gpu.plugin.shared,
        triton=triton_runs_on(gpu.device.type),
        product=gpu.product,
        arch=gpu.arch.name,
        target=gpu.target.id if gpu.target is not None else None,
        cache_bytes=_cache_bytes(gpu),
        caches=tuple(_caches(gpu)),
        free_bytes=free,
        total_bytes=total,
        support=_support(gpu),
        capabilities=tuple(sorted(map(str, gpu.capabilities))),
        attention=_attention_back_ends(),
        tuners=tuple(each.name for each in gpu.plugin.tuners()),
        direct_storage=_direct_storage(gpu),
        no_peer_copies=dict(gpu.plugin.variables.no_peer_copies),
        versions={**gpu.versions, "comm": _comm_version(gpu)},
        comm=gpu.comm.library,
        comm_version=gpu.comm.version,
        units=gpu.sizing.unit_count,
    )
    return asdict(device)


def _direct_storage(gpu: Backend) -> dict[str, str] | None:
    found = gpu.plugin.direct_storage()
    return dict(found.environment) if found is not None else None


def _attention_back_ends() -> tuple[str, ...]:
    from torch.nn.attention import SDPBackend

    names = [name for name in SDPBackend.__members__ if name != "ERROR"]
    return tuple(name.lower().removesuffix("_attention") for name in names)


def _comm_version(gpu: Backend) -> str:
    return " ".join(part for part in (gpu.comm.library, gpu.comm.version) if part)


def _support(gpu: Backend) -> dict[str, str]:
    import torch

    found = {
        dtype: str(gpu.precision.support(getattr(torch, name)))
        for dtype, name in _TORCH_NAMES.items()
    }
    if gpu.precision.fp8 is not None:
        found["fp8"] = str(gpu.precision.support(gpu.precision.fp8.e4m3))
    else:
        # emulation is not measured: which formats a CPU emulates is its library's affair
        held = any(getattr(torch, name) in gpu.precision.table for name in FP8_NAMES)
        found["fp8"] = str(Support.STORAGE if held else Support.NONE)
    # no torch dtype of its own: fp32 products whose inputs are rounded, where the target has a rate
    rated = gpu.target is not None and gpu.target.peak("tf32") is not None
    found["tf32"] = str(Support.NATIVE if rated else Support.NONE)
    return found


def _caches(gpu: Backend) -> list[CacheLevel]:
    """The levels of the host's own for a CPU, else of the target."""
    if gpu.plugin.shared:
        from portagpu.facts.host import Tree, read_cpu

        return levels_of_host(read_cpu(Tree()).caches)
    return levels_of_target(gpu.target, gpu.sizing.unit_count) if gpu.target is not None else []


def _cache_bytes(gpu: Backend) -> int | None:
    """The size of the last-level cache: the host's own for a CPU, else the target's."""
    if gpu.plugin.shared:
        from portagpu.facts.host import Tree, read_cpu

        caches = read_cpu(Tree()).caches
        last = max((cache.level for cache in caches), default=0)
        sizes = [each.size_bytes * each.instances for each in caches if each.level == last]
        return sum(sizes) or None
    stated = _cache_of_target(gpu.target) if gpu.target is not None else None
    reported = getattr(gpu.get_device_properties(), "L2_cache_size", None)
    return stated or (int(reported) if reported else None)


def _cache_of_target(target: Target) -> int | None:
    facts = [target.fact(f"cache.{key}") for key in ("l2_total", "memory_side_total")]
    sizes = [
        int(fact.value * _MIB)
        for fact in facts
        if fact is not None and fact.unit == "MiB" and isinstance(fact.value, int | float)
    ]
    return max(sizes, default=None)
