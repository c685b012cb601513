"""Whether what a bundle says to have executed can have run on the devices that it names."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from portagpu.arch import base_name
from portagpu.bundle.facts import agreement, reported
from portagpu.errors import BundleError, PortagpuError, TargetNotFound
from portagpu.registry import plugin
from portagpu.target import load_target
from portagpu.verdicts import Evidence, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from portagpu.results import Result, Run
    from portagpu.target import Target

_WORLD: Final = re.compile(r"\[(?:.*-)?n?(\d+)\]")
"""The number of ranks in an id: ``collectives/all_reduce[8]``, ``collectives/sum[float32-n4]``."""
_RANK: Final = re.compile(r"rank (\d+)")


def check_evidence(run: Run, facts: Sequence[Mapping[str, Any]]) -> None:
    """Raises BundleError that names the first thing that cannot be."""
    target = _target(run)
    shared = _shared(run, target)
    _check_devices(run, target)
    _check_facts(run, facts)
    if not shared:
        for result in run.results:
            ranks = needed_ranks(result)
            if Evidence.EXECUTED in result.evidence and ranks > len(run.info.devices):
                raise BundleError(
                    f"{result.id}: {ranks} ranks cannot have executed on "
                    f"{len(run.info.devices)} device(s)"
                )


def needed_ranks(result: Result) -> int:
    """How many devices a result needs at least where ranks share none, as far as it says."""
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


def _shared(run: Run, target: Target) -> bool:
    """Whether the backend's ranks share a device, as only those of a CPU do."""
    try:
        shared = _shares_device(run.info.backend or "")
    except PortagpuError as error:
        raise BundleError(f"result.run.backend: {error}") from error
    if shared != (target.arch.vendor == "cpu"):
        raise BundleError(
            f"result.run.backend: a run of {run.info.backend} did not execute on {target.id}"
        )
    return shared


def _check_devices(run: Run, target: Target) -> None:
    """The devices of the run are the target's, and each said so itself."""
    expected = {"vendor": target.arch.vendor, "arch": target.arch.name, "target": target.id}
    seen = list(reported(run.results).values())
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


def _check_facts(run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every row is what the device reported, and a difference is a result, not a remark."""
    devices = reported(run.results)
    for index, row in enumerate(rows):
        where = f"facts[{index}]"
        facts = devices.get(row["device"])
        if facts is None or facts.get(row["fact"]) != row["reported"]:
            raise BundleError(f"{where}: is not what {row['device']} reported")
        try:
            agrees = agreement(row["fact"], row["stated"], row["reported"])
        except (TypeError, ValueError):
            raise BundleError(f"{where}.stated: cannot be compared with what is reported") from None
        if agrees is not row["agrees"]:
            raise BundleError(f"{where}.agrees: is {row['agrees']}, and the values say {agrees}")
        if agrees is False and run.verdict is Verdict.PASS:
            raise BundleError(f"{where}: differs, so that the verdict cannot be PASS")
    missing = devices.keys() - {row["device"] for row in rows}
    if missing:
        raise BundleError(f"facts: say nothing of {min(missing)}")
