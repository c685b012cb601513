"""The steps of a fleet run: one of each node, or rounds of pairs and then groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from portagpu.reports.fleet.record import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def single_steps(names: Sequence[str]) -> tuple[Step, ...]:
    """One step for each node."""
    return tuple(Step(id=name, nodes=(name,)) for name in names)


def joint_steps(names: Sequence[str], rounds: int, group: int | None = None) -> tuple[Step, ...]:
    """``rounds`` of pairs in which each node has another partner each time, then groups of nodes.

    A pair that is slow may have a slow node or a slow link: a node's other pairs tell. Groups are
    of neighbours in the list, and load what pairs leave idle: switches and uplinks.
    """
    found = [
        Step(id=f"{first}+{second}", nodes=(first, second), round=number)
        for number, pairs in enumerate(pair_rounds(names)[:rounds])
        for first, second in pairs
    ]
    if group is not None:
        found += [
            Step(id=f"group-{start // group}", nodes=tuple(own), round=rounds)
            for start in range(0, len(names), group)
            if len(own := names[start : start + group]) == group
        ]
    return tuple(found)


def pair_rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A round robin by the circle method: every two nodes meet once, and no node is twice in a
    round. With an odd number one node rests in each round.
    """
    places: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    return [list(_round(places, number)) for number in range(len(places) - 1)]


def _round(places: Sequence[str | None], number: int) -> Iterator[tuple[str, str]]:
    # the first stays, and the others go round it
    turning = len(places) - 1
    circle = [places[0], *(places[1 + (place + number) % turning] for place in range(turning))]
    for low in range(len(circle) // 2):
        first, second = circle[low], circle[-1 - low]
        if first is not None and second is not None:
            yield min(first, second), max(first, second)
