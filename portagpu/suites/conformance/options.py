"""The options of the conformance suite: which cases run, on what, and with which seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from portagpu._version import __version__
from portagpu.base.errors import PortagpuError, ResultError
from portagpu.base.patience import LIMITS
from portagpu.base.text import did_you_mean
from portagpu.runs.engine import RunOptions, check_device
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
    :param deep: With the cases of the deep level, which others have only by their whole names.
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
    deep: bool = False
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
        named = {*self.only, *(self.failed or ())}
        if not self.deep:
            chosen = [
                each for each in chosen if each.default or {each.id, base_id(each.id)} & named
            ]
        if not chosen:
            raise SelectionError(
                f"all cases of {', '.join(self.only)} are of the deep level: add --level "
                "deep, or give their whole names"
            )
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


EVERYTHING: Final = Selection(deep=True)


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


def cases_of_area(area: str, cases: Sequence[ListedCase]) -> list[ListedCase]:
    """The case that runs programs of that area; raises SelectionError if there is none."""
    found = [case for case in cases if case.search == area]
    if not found:
        areas = dict.fromkeys(case.search for case in cases if case.search)
        hint = did_you_mean(area, list(areas), f"areas are {', '.join(areas)}")
        raise SelectionError(f"no case runs programs of {area!r}: {hint}")
    return found


def matching_patterns(only: Sequence[str], cases: Sequence[ListedCase]) -> tuple[str, ...]:
    """The patterns that match a case: the cases of others may be in an unreadable file."""
    return tuple(one for one in only if any(matches(one, each.id) for each in cases))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformOptions(RunOptions):
    """The options of a run of the suite.

    A case that ends its process is an ERROR, and the others go on. If the backend has several
    devices, results about one name it.

    :param target: What is judged, by default this machine's target. If the machine is another
        target, nothing runs and every case is INCONCLUSIVE.
    :param backend: The backend's name, by default the one for this machine.
    :param selection: Which cases run and in which order, by default all of the default level.
    :param index: The device to judge, several of them, or None for all. Devices after the first
        run only the per-device cases, not those of torch alone or on ranks. A further device that
        cannot be opened is an ERROR.
    :param timeout_s: Seconds after which a case is ended and FAILs.
    :param exit_first: Begin no case after the first failure.
    :param folder: The folder of other case files, or with ``upstream`` of PyTorch's test files.
    :param upstream: Run PyTorch's own tests, as cases of the area "upstream".
    :param expected: A file of the schema ``portagpu.expected/1``: failures of those tests that are
        known.
    :param seed: The seed of random programs, by default :func:`seed_of` the day and the version.
    :param search_s: Seconds for all random programs together, by default as long as each case
        states, and a tenth of it in the smoke selection.
    :param program: A line of an earlier failure: the case of its area runs that program alone.
    """

    backend: str | None = None
    selection: Selection = Selection()
    index: int | Sequence[int] | None = 0
    timeout_s: float = LIMITS.case_s
    exit_first: bool = False
    folder: Path | None = None
    upstream: bool = False
    expected: Path | None = None
    seed: int | None = None
    search_s: float | None = None
    program: str = ""

    def indices(self) -> tuple[int, ...]:
        """The devices to judge; raises UnknownDevice, and ValueError if ``index`` is empty."""
        from portagpu.devices import registry

        if isinstance(self.index, int):
            if self.index:
                check_device(self.backend, self.index)
            return (self.index,)
        if self.index is None:
            name = registry.resolve(self.backend)
            return tuple(range(1 if registry.plugin(name).shared else registry.count(name)))
        if not self.index:
            raise ValueError("conform() judges at least one device: index is empty")
        return tuple(self.index)


def seed_of(moment: datetime | None = None, version: str = __version__) -> int:
    """The seed of a day in UTC and a version: 20261201000100 on 2026-12-01 for 0.1.0.

    All machines draw the same programs on one day, and others on the next.

    :param moment: A time of that day, by default now.
    :param version: The version of portagpu: its first three numbers, below 100 each.
    """
    numbers = [*map(int, re.findall(r"\d+", version)), 0, 0, 0][:3]
    seed = int(f"{(moment or datetime.now(UTC)).astimezone(UTC):%Y%m%d}")
    for number in numbers:
        seed = 100 * seed + number % 100
    return seed
