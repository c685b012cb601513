"""Checks that what a bundle states as executed can have run on the devices that it names."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.errors import BundleError, PortagpuError, TargetNotFound
from portagpu.checks.bringup.gates import load_gates
from portagpu.devices.registry import plugin
from portagpu.facts.arch import base_name
from portagpu.facts.targets import load_target
from portagpu.reports.bundles.document import EFFORT
from portagpu.reports.bundles.result_ids import most_earned
from portagpu.runs.results.verdicts import Evidence

if TYPE_CHECKING:
    from portagpu.facts.targets import Target
    from portagpu.runs.results.run import Result, Run

_WORLD: Final = re.compile(r"[\[-]n?(\d++)\]")
"""The number of ranks in an id: ``collectives/all_reduce[8]``, ``collectives/sum[float32-n4]``."""
_RANK: Final = re.compile(r"rank (\d+)")
_DEVICE: Final = "identity/device"
"""The id of the results whose ``extra.facts`` holds what a device reported."""


def check_evidence(run: Run) -> None:
    """Raise BundleError for the first statement that is impossible."""
    if run.info.replay:
        raise BundleError("result.run.replay: a recording was judged, and nothing executed")
    target = _target(run)
    shared = _run_shares_device(run, target)
    _check_devices(run, target)
    if not shared:
        for result in run.results:
            ranks = needed_ranks(result)
            if Evidence.EXECUTED in result.evidence and ranks > len(run.info.devices):
                raise BundleError(
                    f"{result.id}: {ranks} ranks cannot have executed on "
                    f"{len(run.info.devices)} device(s)"
                )
    _check_names(run, shared)


def _check_names(run: Run, shared: bool) -> None:
    """Check that results with evidence name devices that described themselves, or ranks of them."""
    worlds = (gate.amounts[EFFORT].get("shared_world", 1) for gate in load_gates())
    ranks = max(worlds) if shared else len(run.info.devices)
    found = (result for result in run.results if result.id == _DEVICE)
    described = {each.device for each in found if each.failed or _facts(each) is not None}
    words = ("rank", f"{run.info.backend} device")
    known = {None, *described, *(f"{word} {n}" for word in words for n in range(ranks))}
    for result in run.results:
        if result.evidence and most_earned(result) and result.device not in known:
            raise BundleError(f"{result.id}: {result.device} is no device that described itself")


def needed_ranks(result: Result) -> int:
    """The least number of devices that a result needs if ranks share none, as far as it says."""
    found = [1]
    if isinstance(result.shape, dict) and isinstance(result.shape.get("ranks"), int):
        found.append(result.shape["ranks"])
    if isinstance(result.extra.get("ranks"), int):
        found.append(result.extra["ranks"])
    if (match := _RANK.fullmatch(result.device or "")) is not None:
        found.append(int(match[1]) + 1)
    if result.id.startswith("collectives/") and (match := _WORLD.search(result.id)) is not None:
        found.append(int(match[1]))
    return max(found)


def _target(run: Run) -> Target:
    if run.info.target is None:
        raise BundleError("result.run.target: is null; a bundle is of a known target")
    try:
        return load_target(run.info.target)
    except TargetNotFound as error:
        raise BundleError(f"result.run.target: {error}") from error


@cache
def _shares_device(backend: str) -> bool:
    return plugin(backend).shared


def _run_shares_device(run: Run, target: Target) -> bool:
    """Whether the backend's ranks share one device, as those of a CPU do."""
    try:
        shared = _shares_device(run.info.backend or "")
    except PortagpuError as error:
        raise BundleError(f"result.run.backend: {error}") from error
    if shared != (target.arch.vendor == "cpu"):
        raise BundleError(
            f"result.run.backend: a run of {run.info.backend} did not execute on {target.id}"
        )
    return shared


def _facts(result: Result) -> dict[str, Any] | None:
    """What a device reported of itself; None in a result without it."""
    facts = result.extra.get("facts") if result.id == _DEVICE else None
    return facts if isinstance(facts, dict) and facts.get("device") == result.device else None


def _check_devices(run: Run, target: Target) -> None:
    """Check that the devices of the run are the target's, and that each reported so itself."""
    expected = {"vendor": target.arch.vendor, "arch": target.arch.name, "target": target.id}
    seen = [facts for result in run.results if (facts := _facts(result)) is not None]
    if not run.info.devices or len(seen) != len(run.info.devices):
        raise BundleError(
            f"result.run.devices: names {len(run.info.devices)} device(s), and {len(seen)} "
            "described themselves"
        )
    for index, (device, facts) in enumerate(zip(run.info.devices, seen, strict=True)):
        where = f"result.run.devices[{index}]"
        for key, wanted in expected.items():
            value = device.get(key)
            if key == "arch" and isinstance(value, str):
                value = base_name(value)
            if value != wanted:
                raise BundleError(f"{where}.{key}: is {value!r}, and {target.id} has {wanted!r}")
        own = {"vendor": "arch_vendor", "arch": "arch", "target": "target"}
        for key, fact in own.items():
            if device.get(key) != facts.get(fact):
                raise BundleError(f"{where}.{key}: the device itself reported {facts.get(fact)!r}")
        if facts.get("backend") != run.info.backend:
            raise BundleError(
                f"{where}: was opened by {facts.get('backend')!r}, not {run.info.backend!r}"
            )
