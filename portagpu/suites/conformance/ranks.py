"""Shared by cases over ranks: integers to exchange, their sums, and checks of what ranks return.

Sums of small integers are exact in any order. A library must refuse what it cannot do with an error
on every rank; a wrong result is a failure. torch is imported where a rank needs it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.documents import decode
from portagpu.base.patience import Starvation
from portagpu.suites.conformance.cases import NotHere, RankFailed
from portagpu.suites.search.busy import excuse, watch_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from portagpu.runs.world import Rank

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
