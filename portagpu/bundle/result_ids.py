"""Which ids a bring-up can report: those of its gates, the conformance cases and the measures.

An id stays, and the parameters in its brackets come and go: a committed result must not become
wrong because a case has another dtype, or because it became a test of this package.
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

_BESIDE_CASES: Final = ("suite",)
"""Areas of results about the conformance suite itself."""
_BESIDE_METRICS: Final = ("device", "ranks", "sustained")
"""Areas of results of the performance suite that are no measure of matrix/performance."""


def check_ids(run: Run, *, same_code: bool) -> None:
    """Every gate has a result and every result an id that is known; raises BundleError.

    Gates may have come since another code measured: of those, the gates that it began count.
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
    """Where a result of a bring-up was first made: ("conformance", "rng"), ("bringup", "links")."""
    suite, area = result.extra.get("suite"), result.extra.get("area")
    if isinstance(suite, str) and isinstance(area, str):
        return suite, area
    return result.suite, result.area


def most_earned(result: Result) -> Evidence | None:
    """The strongest evidence that a result of a bring-up can have, whatever it states.

    A case states what it asks for by its fixtures, a gate in ``gates.toml``; measures ran.
    """
    suite, area = suite_and_area(result)
    if suite == SUITE and area not in _BESIDE_CASES:
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
        return known or prefix in _BESIDE_CASES
    if suite == "performance":
        return base_id(result.id) in measures.metrics() or prefix in _BESIDE_METRICS
    return suite == "bringup" and prefix == area == result.area


@cache
def _cases() -> Mapping[str, Evidence | None]:
    return {base_id(case.id): case.evidence for case in list_cases()}
