"""What every device reported beside what its target states, as a table of the bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from portagpu.results import Result
    from portagpu.target import Target

DEVICE: str = "identity/device"
"""The id of the results whose ``extra.facts`` holds what a device reported."""


def reported(results: Iterable[Result]) -> dict[str, Mapping[str, Any]]:
    """Name of a device -> what it reported, in the order of the run."""
    return {
        result.device: result.extra["facts"]
        for result in results
        if result.id == DEVICE and result.device and isinstance(result.extra.get("facts"), dict)
    }


def compare(target: Target, results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each fact of each device: ``device, fact, stated, reported, agrees``.

    ``stated`` and ``agrees`` are None where the target states nothing. ``memory_bytes`` is stated
    as the inclusive range [low, high], ``capabilities`` as what the target claims, of which the
    device has to have all.
    """
    return [
        {"device": name, "fact": fact, "stated": stated, "reported": seen, "agrees": agrees}
        for name, facts in reported(results).items()
        for fact, stated, seen in _pairs(target, facts)
        for agrees in (agreement(fact, stated, seen),)
    ]


def agreement(fact: str, stated: Any, seen: Any) -> bool | None:
    """Whether what was reported is what is stated; None where nothing is."""
    if stated is None:
        return None
    if fact == "memory_bytes":
        low, high = stated
        return bool(low <= seen <= high)
    if fact == "capabilities":
        return set(stated) <= set(seen)
    return bool(stated == seen)


def _pairs(target: Target, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    memory = target.match.memory_bytes
    stated = {
        "arch": target.arch.name,
        "warp_size": target.arch.warp_size,
        "unit_count": target.value("exec.unit_count"),
        "memory_bytes": list(memory) if memory is not None else None,
        "capabilities": sorted(target.claims),
    }
    for fact, value in stated.items():
        if facts.get(fact) is not None:
            yield fact, value, facts[fact]
