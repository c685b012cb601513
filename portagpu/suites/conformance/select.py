"""The selection of cases to run, and their order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from portagpu.base.errors import PortagpuError, ResultError
from portagpu.base.text import did_you_mean
from portagpu.runs.results.run import read_json
from portagpu.suites.conformance.cases import AREAS, SUITE, base_id, matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from portagpu.runs.results.run import Result
    from portagpu.suites.conformance.messages import ListedCase


class SelectionError(PortagpuError, LookupError):
    """No case has that area or id; the message suggests the closest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which cases to run; all conditions apply together.

    :param only: Areas, ids and id patterns, one of which has to fit.
    :param smoke: The short selection.
    :param failed_in: Select the cases that are FAIL or ERROR in that result document. It is read at
        once into ``failed``, so that a run may write to the same file.
    :param shard: (i, n), the i-th of n parts; the parameters of a case stay in one part.
    :param shuffle: The seed of a random order.
    :param per_device: Leave out the cases of torch alone and on ranks, whose results are the same
        for further devices.
    :raises SelectionError: ``failed_in`` is not a result document.
    """

    only: tuple[str, ...] = ()
    smoke: bool = False
    failed_in: Path | None = None
    shard: tuple[int, int] | None = None
    shuffle: int | None = None
    per_device: bool = False
    failed: frozenset[str] | None = field(default=None, repr=False)
    failed_on: frozenset[str] = field(default=frozenset(), repr=False)
    """The devices that those results name."""

    def __post_init__(self) -> None:
        if self.failed_in is not None and self.failed is None:
            found = _failed_results(self.failed_in)
            object.__setattr__(self, "failed", frozenset(each.id for each in found))
            devices = frozenset(each.device for each in found if each.device)
            object.__setattr__(self, "failed_on", devices)

    @property
    def partial(self) -> bool:
        """Whether cases are left out, so that the suite as a whole cannot be judged."""
        return bool(self.only or self.smoke or self.failed_in or self.shard or self.per_device)

    def choose(self, cases: Sequence[ListedCase]) -> list[ListedCase]:
        """The selected cases in the order to run; raises SelectionError if there are none."""
        chosen = select(cases, self.only, self.smoke)
        if self.failed_in is not None:
            chosen = [each for each in chosen if each.id in (self.failed or ())]
            if not chosen and not self.unknown_failed_ids(cases):
                raise SelectionError(f"no case that is asked for failed in {self.failed_in}")
        if self.shard is not None:
            chosen = _shard(chosen, *self.shard)
        if self.per_device:
            chosen = [each for each in chosen if each.per_device]
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(chosen)  # noqa: S311 - an order, no secret
        return chosen

    def unknown_failed_ids(self, cases: Sequence[ListedCase]) -> list[str]:
        """The ids in ``failed`` that none of ``cases`` (all there are) has."""
        return sorted((self.failed or frozenset()) - {each.id for each in cases})


EVERYTHING: Final = Selection()


def select(cases: Sequence[ListedCase], only: Sequence[str], smoke: bool) -> list[ListedCase]:
    """The selected cases in their order; raises SelectionError for a name that fits none."""
    chosen = list(cases)
    if only:
        for pattern in only:
            if not any(matches(pattern, each.id) for each in cases):
                raise SelectionError(_unknown_pattern(pattern, cases))
        chosen = [each for each in chosen if any(matches(one, each.id) for one in only)]
    if smoke:
        chosen = [each for each in chosen if each.smoke]
    if not chosen:
        within = f" in {', '.join(only)}" if only else ""
        raise SelectionError(f"there is no {'smoke ' if smoke else ''}case{within}")
    return chosen


def _shard(cases: list[ListedCase], i: int, n: int) -> list[ListedCase]:
    if not 1 <= i <= n:
        raise SelectionError(f"there is no part {i} of {n}: parts are 1/{n} to {n}/{n}")
    functions = list(dict.fromkeys(base_id(each.id) for each in cases))
    mine = set(functions[i - 1 :: n])
    if not mine:
        raise SelectionError(f"part {i} of {n} is empty: there are {len(functions)} functions")
    return [each for each in cases if base_id(each.id) in mine]


def _failed_results(path: Path) -> list[Result]:
    """The failed conformance results in a document of ``conform``, or in a bring-up's folder.

    Other results of a bring-up do not belong to this suite.
    """
    file = path / "result.json" if path.is_dir() else path
    try:
        results = read_json(file).results
    except ResultError as error:
        raise SelectionError(f"{error}; give a result document, as --json writes it") from None
    return [
        each for each in results if each.failed and SUITE in (each.suite, each.extra.get("suite"))
    ]


def _unknown_pattern(pattern: str, cases: Sequence[ListedCase]) -> str:
    areas = [area for area in AREAS if any(each.area == area for each in cases)]
    names = [*areas, *dict.fromkeys(base_id(each.id) for each in cases)]
    full = [each.id for each in cases] if "[" in pattern else []
    hint = did_you_mean(pattern, names + full, f"areas are {', '.join(areas)}")
    return f"no case is called {pattern!r}: {hint}"
