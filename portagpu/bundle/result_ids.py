"""The result ids that a bring-up can report: of its gates, conformance cases and measures.

An id stays while the parameters in its brackets may change: a committed result stays valid when a
case gets another dtype, or becomes a test of this package.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from portagpu.bench import suite as measures
from portagpu.bringup.gates import load_gates
from portagpu.errors import BundleError
from portagpu.results.verdicts import Evidence
from portagpu.suite import list_cases
from portagpu.suite.case_ids import base_id, retired_cases
from portagpu.suite.cases import SUITE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from portagpu.results.run import Result, Run

_SUITE_AREAS: Final = ("suite",)
"""Areas of results about the conformance suite itself."""
_OTHER_AREAS: Final = ("device", "ranks", "sustained")
"""Areas of results of the performance suite that are no measure of matrix/performance."""


def check_ids(run: Run, *, same_code: bool) -> None:
    """Raise BundleError unless every gate has a result and every result a known id.

    Gates may have been added since other code measured: then only the gates that it began count.
    """
    gates = {gate.id for gate in load_gates()}
    begun = set(run.info.area_duration_s) & gates
    seen: set[str] = set()
    for index, result in enumerate(run.results):
        if not _is_known(result, gates):
            raise BundleError(f"result.results[{index}].id: {result.id} is no id of this package")
        seen.add(result.area)
    missing = sorted((gates if same_code or not begun else begun) - seen)
    if missing:
        raise BundleError(f"result.results: nothing of the gate {missing[0]}")


def suite_and_area(result: Result) -> tuple[str, str]:
    """The original suite and area of a result: ("conformance", "rng"), ("bringup", "links")."""
    suite, area = result.extra.get("suite"), result.extra.get("area")
    if isinstance(suite, str) and isinstance(area, str):
        return suite, area
    return result.suite, result.area


def most_earned(result: Result) -> Evidence | None:
    """The strongest evidence that a result of a bring-up can have, whatever it states.

    For a case its fixtures decide, for a gate ``gates.toml``; measures are executed.
    """
    suite, area = suite_and_area(result)
    if suite == SUITE and area not in _SUITE_AREAS:
        return _cases().get(base_id(result.id))
    if suite == "bringup":
        return next((gate.earns for gate in load_gates() if gate.id == area), None)
    return Evidence.EXECUTED


def _is_known(result: Result, gates: set[str]) -> bool:
    suite, area = suite_and_area(result)
    prefix, slash, name = result.id.partition("/")
    if not slash or not name or result.suite != "bringup" or result.area not in gates:
        return False
    if suite == SUITE:
        known = base_id(result.id) in _cases().keys() | retired_cases().keys()
        return known or prefix in _SUITE_AREAS
    if suite == "performance":
        return base_id(result.id) in measures.metrics() or prefix in _OTHER_AREAS
    return suite == "bringup" and prefix == area == result.area


@cache
def _cases() -> Mapping[str, Evidence | None]:
    return {base_id(case.id): case.evidence for case in list_cases()}
