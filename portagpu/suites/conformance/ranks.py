"""Shared by cases over ranks: exact sums, checks of what ranks return, and shared worlds.

Sums of small integers are exact in any order. A library must refuse what it cannot do with an error
on every rank; a wrong result is a failure. torch is imported where a rank needs it.

Forking ranks and joining them to a group takes far longer than most collectives. So the first
parameter of a case runs the function for all parameters in one world, and the others take their
values from it. If anything fails there, every parameter runs in its own world, so that one cannot
change another's verdict; the shared failure is part of the verdicts
(``portagpu.suites.conformance.judge``).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode
from portagpu.base.patience import Starvation
from portagpu.runs.world import load_function
from portagpu.suites.conformance.cases import NotHere, RankFailed
from portagpu.suites.search.area import excuse, watch_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from portagpu.runs.world import Rank, WorldOutcome


WORLDS: Final = (1, 2, 3, 4, 8)
SEVERAL: Final = WORLDS[1:]
REFUSED: Final = "refused: "


def stopwatch() -> Callable[[], dict[str, Any]]:
    """Begin to measure on a rank; the function gives the time so far for :func:`time_limited`."""
    watch = watch_world()
    return lambda: asdict(watch.starved)


@contextmanager
def time_limited(spent: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    """Assertions about what ranks do within a limit of time, of each rank with its stopwatch.

    Raises NotHere where they do not hold on a busy machine: ranks that wait for a CPU are late, and
    are taken for lost.
    """
    found = [decode(Starvation, each, "spent") for each in spent]
    try:
        yield
    except AssertionError as error:
        starved = next(filter(None, map(excuse, found)), None)
        if starved is None:
            raise
        raise NotHere(f"{error}{starved.remark}: run it again on a quiet machine") from error


def check_in_time(spent: Mapping[str, Any], limit_s: float, what: str) -> None:
    """Fail with ``what`` if a rank was at work for longer; its waits for a CPU do not count."""
    found = decode(Starvation, spent, "spent")
    seconds = found.wall_s - found.waited_s
    if seconds >= limit_s:
        raise RankFailed(f"{what} {seconds:.1f} s, the bound is {limit_s:g} s", "hung")


def payload(rank: int, count: int = 12) -> list[int]:
    """Integers from -5 to 5, different on every rank."""
    return [(7 * rank + 3 * place) % 11 - 5 for place in range(count)]


def columns(n: int, count: int = 12) -> list[tuple[int, ...]]:
    """For every position, the values of n ranks."""
    return list(zip(*(payload(rank, count) for rank in range(n)), strict=True))


def total(n: int, count: int = 12) -> list[int]:
    """The sums of every rank's payload."""
    return [sum(column) for column in columns(n, count)]


def rank_tensor(rank: Rank, values: Any, dtype: str = "float32") -> torch.Tensor:
    """The values on the rank's device."""
    import torch

    return torch.tensor(values).to(getattr(torch, dtype)).to(rank.gpu.device)


def json_values(tensor: torch.Tensor) -> Any:
    """The tensor's values as JSON holds them; the real parts of complex ones."""
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.cpu().to(wide).real.tolist()


def value_or_refusal(call: Callable[[], Any]) -> Any:
    """The value of the call, or "refused: " with the type of the typed error that it raised."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{REFUSED}{type(error).__name__}"


def is_refusal(found: Any) -> bool:
    """Whether a rank's value is a refusal."""
    return isinstance(found, str) and found.startswith(REFUSED)


def check_each_rank(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless every rank has its expected value."""
    for rank, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        if got != wanted:
            raise AssertionError(f"{what}: rank {rank} got {got}, not {wanted}")


def check_right_or_refused(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless every rank has its expected value, or every rank refused."""
    if not all(is_refusal(each) for each in found):
        check_each_rank(found, expected, what)


def check_all_refused(found: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless every rank refused."""
    for rank, each in enumerate(found):
        if not is_refusal(each):
            raise AssertionError(f"rank {rank} did not refuse {what}: it gave {each!r}")


def run_all(rank: Rank, place: str, calls: list[dict[str, Any]]) -> list[Any]:
    """What the function returns for each of the arguments; runs on every rank."""
    function = load_function(place)
    return [function(rank, **arguments) for arguments in calls]


@dataclass(frozen=True, slots=True)
class Batches:
    """The values of worlds by what they ran: shared ones, and those of a single call."""

    outcomes: dict[str, WorldOutcome] = field(default_factory=dict)
    alone: dict[str, list[Any]] = field(default_factory=dict)

    def keep(self, place: str, n: int, arguments: Mapping[str, Any], values: list[Any]) -> None:
        """Keep the values of a world for other cases that run the same call."""
        self.alone[f"{place} {n} {arguments}"] = values

    def values(
        self,
        calls: Sequence[dict[str, Any]],
        place: str,
        n: int,
        arguments: dict[str, Any],
        run: Callable[[str, dict[str, Any]], WorldOutcome],
    ) -> tuple[list[Any] | None, WorldOutcome | None]:
        """(each rank's value, None) from a world of all ``calls``, or (None, what failed).

        ``run(place, arguments)`` runs a function in a new world. Both are None if ``arguments`` are
        the only call: then nothing is batched.
        """
        known = self.alone.get(f"{place} {n} {arguments}")
        if known is not None:
            return known, None
        if len(calls) < 2:
            return None, None
        key = f"{place} {n} {calls}"
        outcome = self.outcomes.get(key)
        if outcome is None:
            every = {"place": place, "calls": calls}
            outcome = self.outcomes[key] = run(f"{__name__}:run_all", every)
        if not outcome.ok:
            return None, outcome
        at = calls.index(arguments)
        return [value[at] for value in outcome.values], None


def batched_calls(
    mine: Mapping[str, Any], siblings: Iterable[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The arguments of all selected forms of a case that differ only in ``arguments``.

    ``mine`` and ``siblings`` are the parameters of the present form and of all selected ones. There
    is only the present call if no parameter is among the arguments, or their values differ.
    """
    varied = {name for name in mine if name in arguments}
    if any(mine[name] != arguments[name] for name in varied):
        return [dict(arguments)]
    calls: list[dict[str, Any]] = []
    for each in siblings:
        if all(each[name] == mine[name] for name in mine if name not in varied):
            call = {**arguments, **{name: each[name] for name in varied}}
            if call not in calls:
                calls.append(call)
    return calls
