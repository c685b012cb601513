"""The cases of the performance suite: one before it runs, and those in ``matrix/performance``.

There is one file for each area, loaded without torch.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.paths import matrix_dir
from portagpu.base.text import did_you_mean, excerpt, fits
from portagpu.runs.results.verdicts import Verdict
from portagpu.suites.performance.timing import Effort

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from portagpu.facts.targets import Target
    from portagpu.suites.performance.device import MeasuredDevice


SUITE: Final = "performance"

SCALES: Final[Mapping[str, float]] = {
    "TFLOPS": 1e12,
    "TOPS": 1e12,
    "GB/s": 1e9,
    "1/s": 1.0,
    "tokens/s": 1.0,
    "ratio": 1.0,
    "1": 1.0,
}
"""Work per second in each unit of rate: decimal, 1 GB is 1e9 bytes. A "ratio" is the time of
another over that of what is measured (``portagpu.base.units.worse_side``), and "1" a count."""
TIME_SCALES: Final[Mapping[str, float]] = {"us": 1e6}
"""Seconds in each unit of time."""

BEYOND_CACHE: Final = 4
"""Arrays of at least four times all last-level caches: the run rule of STREAM
(https://www.cs.virginia.edu/stream/ref.html)."""
_UNKNOWN_CACHE_BYTES: Final = 128 << 20
_MIN_ARRAY_BYTES: Final = 64 << 20
_QUICK_ARRAY_BYTES: Final = 512 << 20
AREAS: Final = (
    "gemm",
    "memory",
    "transfer",
    "launch",
    "kernels",
    "attention",
    "operators",
    "training",
    "storage",
    "tuning",
    "collectives",
)
"""In the order in which they run."""
FURTHER_IDS: Final = frozenset(
    {
        *("device/open", "ranks/gemm"),
        *("sustained", "sustained/identical", "sustained/gemm", "sustained/drift"),
    }
)
"""The ids of results that are not measures of these areas."""


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a case does not run: SKIP (not claimed) or INCONCLUSIVE (claimed, not judged)."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    """One measure: ``function(rank, effort=..., **arguments)`` returns a ``RankSamples`` as JSON.

    ``metric`` is the id under which targets state expectations, ``id`` adds the variant in square
    brackets. ``function`` is "name" in the area's file. ``counts`` says what work is counted,
    ``checks`` how values are checked before a time is kept.
    """

    id: str
    metric: str
    area: str
    unit: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    world: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its ranks have in addition to those of this process."""
    algorithm: str | None = None
    dtype: str | None = None
    shape: str | Mapping[str, int | str] | None = None
    axis: str = ""
    """The name of a curve's x axis ("array size"); empty if there is no curve."""
    counts: str = ""
    checks: str = ""
    does_not_show: str = ""
    least: float | None = None
    """The least value that this project requires on any hardware; None for no requirement."""
    absent: Absent | None = None
    further: bool = False
    """Whether a bring-up, which asks whether a device is sound, leaves it out."""
    time_factor: float = 1.0
    """How many times the usual limit it may take, where it does more than one measure."""


def large_array_bytes(device: MeasuredDevice, arrays: int, effort: Effort = Effort.FULL) -> int:
    """Bytes of each of ``arrays`` arrays, which together use at most a quarter of free memory.

    Larger than the last-level cache if memory allows; a multiple of 1 MiB. The cores of a CPU may
    see the cache of a whole socket. Where arrays of at most 512 MiB are not beyond it, the quick
    effort takes the smallest: larger ones would prove no more.
    """
    cache = device.cache_bytes or _UNKNOWN_CACHE_BYTES
    wanted = max(BEYOND_CACHE * cache, _MIN_ARRAY_BYTES)
    if device.free_bytes is not None:
        wanted = min(wanted, device.free_bytes // (4 * arrays))
    if device.shared and effort is Effort.QUICK and wanted > _QUICK_ARRAY_BYTES:
        wanted = _MIN_ARRAY_BYTES
    return max(wanted >> 20, 1) << 20


def beyond_cache(device: MeasuredDevice, array_bytes: int) -> bool:
    """Whether arrays of that size are so large that their traffic is the memory's."""
    return array_bytes >= BEYOND_CACHE * (device.cache_bytes or _UNKNOWN_CACHE_BYTES)


def cache_sentence(device: MeasuredDevice, array_bytes: int) -> str:
    """A sentence for ``does_not_show`` if arrays are not beyond the cache, else empty."""
    if device.cache_bytes is None:
        return f"the size of the last-level cache is unknown; arrays are {array_bytes >> 20} MiB"
    if not beyond_cache(device, array_bytes):
        return (
            f"arrays of {array_bytes >> 20} MiB are not {BEYOND_CACHE} times the last-level cache "
            f"of {device.cache_bytes >> 20} MiB, so part of the traffic may be cache"
        )
    return ""


def no_triton(device: MeasuredDevice) -> Absent | None:
    """Why kernels in Triton do not run on the device; None if they do."""
    if device.triton:
        return None
    return Absent(Verdict.SKIP, f"Triton launches nothing on {device.name}")


def no_ranks(device: MeasuredDevice, world: int) -> Absent | None:
    """Why a collective over ``world`` ranks has no bus bandwidth here; None if it has one."""
    if "collectives" not in device.capabilities:
        return Absent(Verdict.SKIP, f"the {device.backend} backend claims no collectives")
    if world == 1:
        return Absent(
            Verdict.SKIP,
            "not applicable: one rank moves nothing between ranks, so it has no bus bandwidth",
        )
    if not device.shared and device.count < world:
        return Absent(
            Verdict.INCONCLUSIVE,
            f"{world} ranks need {world} devices, and this machine shows {device.count}",
        )
    return None


class UnknownMeasure(PortagpuError, LookupError):
    """No area, metric or case has that name; the message suggests the closest one."""


def area_file(area: str) -> Path:
    """The file that says what is measured in ``area``."""
    return matrix_dir() / "performance" / f"{area}.py"


def load_area(area: str) -> ModuleType:
    """The module of ``area``: ``METRICS``, ``cases`` and the functions that ranks run."""
    name = f"portagpu_performance_{area}"
    path = area_file(area)
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PortagpuError(f"{path} is missing: reinstall portagpu from its wheel")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def metrics() -> tuple[str, ...]:
    """Every metric id ("gemm/bf16"), in the order in which they run. Needs no torch."""
    return tuple(metric for area in AREAS for metric in load_area(area).METRICS)


def selected_areas(names: Sequence[str] | None) -> tuple[str, ...]:
    """The areas of ``names`` (areas, metrics, case ids or patterns; all areas without names).

    Raises UnknownMeasure.
    """
    if not names:
        return AREAS
    wanted: set[str] = set()
    for name in names:
        found = [each for each in (*AREAS, *metrics()) if fits(name.partition("[")[0], each)]
        if not found:
            raise unknown_measure(name, [*AREAS, *metrics()])
        wanted |= {each.partition("/")[0] for each in found}
    return tuple(area for area in AREAS if area in wanted)


def plan(
    names: Sequence[str] | None,
    device: MeasuredDevice,
    effort: Effort,
    world: int,
    target: Target | None,
) -> list[BenchCase]:
    """The cases to run on ``device``, in order; raises UnknownMeasure for a name that fits none."""
    found: list[BenchCase] = []
    for area in selected_areas(names):
        cases: Iterable[BenchCase] = load_area(area).cases(
            device=device, effort=effort, world=world, target=target
        )
        found.extend(cases)
    if not names:
        return found
    chosen = [case for case in found if any(_is_selected_by(name, case) for name in names)]
    for name in names:
        if not any(_is_selected_by(name, case) for case in chosen):
            raise unknown_measure(name, [case.id for case in found])
    return chosen


def unknown_measure(name: str, names: Sequence[str]) -> UnknownMeasure:
    """The error for a name that is not among ``names``, with the closest of them."""
    hint = did_you_mean(name, names, f"areas are {', '.join(AREAS)}")
    return UnknownMeasure(f"there is no measure {excerpt(name)!r}: {hint}")


def function_spec(case: BenchCase) -> str:
    """``case.function`` as ranks load it: "/path/area.py:name", or as it is where it has a file."""
    return case.function if ":" in case.function else f"{area_file(case.area)}:{case.function}"


def _is_selected_by(name: str, case: BenchCase) -> bool:
    return any(fits(name, each) for each in (case.area, case.metric, case.id))


def usual_layout(dtype: str) -> str:
    """The index along which A and along which B is contiguous, unless something else is asked for.

    torch's own products of int8 and fp8 want their second operand column by column.
    """
    return "kk" if dtype in ("int8", "fp8") else "kn"
