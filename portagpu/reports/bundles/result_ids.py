"""The result ids that a bring-up can report: of its gates, conformance cases and measures.

An id stays while the parameters in its brackets may change: a committed result stays valid when a
case loses a dtype, or becomes a test of this package. It then earns nothing.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import BundleError
from portagpu.checks.bringup.gates import load_gates
from portagpu.runs.results.advice import find_check
from portagpu.runs.results.verdicts import Evidence
from portagpu.suites.compile.judge import SUITE as BUILDS
from portagpu.suites.conformance import list_cases
from portagpu.suites.conformance.cases import SUITE, base_id, retired_cases
from portagpu.suites.conformance.judge import OWN_AREA
from portagpu.suites.performance import cases as measures
from portagpu.suites.performance.cases import SUITE as MEASURES
from portagpu.suites.performance.device import MeasuredDevice
from portagpu.suites.performance.timing import Effort
from portagpu.suites.screen import SUITE as SCREEN
from portagpu.train.exact.probes import PROBES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.runs.results.run import Result, Run

_BRINGUP: Final = "bringup"
_SIZE: Final = re.compile(r"(?<=\[)\d+(x\d+x\d+)?(?=\]$)")
"""The size of a measure, which follows the device: ``gemm/fp32[4096]``."""


def check_ids(run: Run, *, same_code: bool) -> None:
    """Raise BundleError unless every gate has a result and every result a known id.

    Gates may have been added since other code measured: then only the gates that it began count.
    """
    gates = set(_gates())
    begun = set(run.info.area_duration_s) & gates
    seen: set[str] = set()
    for index, result in enumerate(run.results):
        where, area = f"result.results[{index}]", area_of(result)
        if not _is_known(result, gates):
            raise BundleError(f"{where}.id: {result.id} is not an id of this package")
        if result.extra.get("area", area) != area:
            raise BundleError(f"{where}.extra.area: is not {area}, the area of {result.id}")
        seen.add(result.area)
    missing = sorted((gates if same_code or not begun else begun) - seen)
    if missing:
        raise BundleError(f"result.results: has no result of the gate {missing[0]}")


def suite_of(result: Result) -> str:
    """The suite that a result comes from: "conformance", "performance", "bringup"."""
    return str(result.extra.get("suite", result.suite))


def area_of(result: Result) -> str:
    """The area of a result in its suite, which its id begins with: "rng", "gemm", "links"."""
    return result.id.partition("/")[0]


def most_earned(result: Result) -> Evidence | None:
    """The strongest evidence that a result can have, whatever it states.

    For a case its fixtures decide, for a gate ``gates.toml``; measures are executed, and kernels
    compiled. What the suite says of itself, and an id that nothing reports any more, earn nothing.
    """
    suite = suite_of(result)
    if suite == SUITE:
        return _cases().get(result.id)
    if suite == MEASURES:
        return Evidence.EXECUTED if _is_measure(result.id) else None
    if suite == BUILDS:
        return Evidence.COMPILED
    if suite == SCREEN:
        return Evidence.EXECUTED if result.id in _screened() else None
    return _gates().get(area_of(result))


@cache
def stated_names(suite: str, area: str) -> frozenset[str]:
    """All that a suite has in an area, by ``stated_name``: empty where nothing states it."""
    if suite == SUITE:
        return frozenset(name for name in _cases() if name.partition("/")[0] == area)
    if suite == MEASURES:
        return frozenset(name for name in measures.metrics() if name.partition("/")[0] == area)
    return frozenset()


def stated_areas(suite: str) -> frozenset[str]:
    """The areas of a suite of which ``stated_names`` knows what is in them."""
    names = _cases() if suite == SUITE else measures.metrics() if suite == MEASURES else ()
    return frozenset(name.partition("/")[0] for name in names)


def stated_name(suite: str, identifier: str) -> str:
    """What an id counts as in ``stated_names``: the case, or the metric, whatever its size."""
    return identifier.partition("[")[0] if suite == MEASURES else identifier


def _is_known(result: Result, gates: set[str]) -> bool:
    if result.suite != _BRINGUP or result.area not in gates:
        return False
    suite, base = suite_of(result), base_id(result.id)
    area, _, name = base.partition("/")
    if suite == SUITE:
        known = base in _bases() or base in retired_cases()
        return known or (area == OWN_AREA and name != "")
    if suite == MEASURES:
        return base in measures.metrics() or _is_measure(result.id)
    if suite == SCREEN:
        return result.area == area and find_check(SCREEN, result.id) is not None
    measure = result.id.partition("/peers/")[2]
    named = _is_measure(measure) if measure else base == result.id
    own = suite == _BRINGUP and area == result.area
    return own and named and find_check(_BRINGUP, result.id) is not None


@cache
def _gates() -> Mapping[str, Evidence | None]:
    return {gate.id: gate.earns for gate in load_gates()}


@cache
def _cases() -> Mapping[str, Evidence | None]:
    return {case.id: case.evidence for case in list_cases()}


@cache
def _screened() -> frozenset[str]:
    """Every id of a screen that work on a device earns."""
    names = (each.name for each in PROBES)
    return frozenset(f"{SCREEN}/{name}" for name in ("device", "digests", *names))


@cache
def _bases() -> frozenset[str]:
    return frozenset(map(base_id, _cases()))


def _is_measure(full: str) -> bool:
    return _SIZE.sub("", full) in _measures()


@cache
def _measures() -> frozenset[str]:
    """Every id of the performance suite, without sizes."""
    device = MeasuredDevice(backend="", name="")
    planned = measures.plan(None, device, Effort.FULL, 2, None)
    return frozenset(_SIZE.sub("", case.id) for case in planned) | measures.FURTHER_IDS
