"""The measures in ``matrix/performance``: one file per area, loaded without torch."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError
from portagpu.base.paths import matrix_dir
from portagpu.base.text import did_you_mean, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import ModuleType

    from portagpu.facts.targets import Target
    from portagpu.suites.performance.cases import BenchCase
    from portagpu.suites.performance.device import MeasuredDevice
    from portagpu.suites.performance.timing import Effort

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
"""The ids of results that are no measure of these areas."""


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
    """The areas of ``names`` (areas, metrics or case ids; all areas without names).

    Raises UnknownMeasure.
    """
    if not names:
        return AREAS
    for name in names:
        if name not in AREAS and name.partition("[")[0] not in metrics():
            raise unknown_measure(name, [*AREAS, *metrics()])
    wanted = {name.partition("/")[0] for name in names}
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
    return name in (case.area, case.metric, case.id)
