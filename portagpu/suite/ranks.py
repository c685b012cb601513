"""What cases over ranks share: whole numbers to exchange, their sums, and how ranks are judged.

Sums of small whole numbers are exact in any order. What a library cannot do it must refuse with an
error on every rank; to do it wrongly is a failure. torch is imported where a rank needs it.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from portagpu.world import Rank

WORLDS: Final = (1, 2, 3, 4, 8)
SEVERAL: Final = WORLDS[1:]
REFUSED: Final = "refused: "


def payload(rank: int, count: int = 12) -> list[int]:
    """Whole numbers from -5 to 5, other ones on every rank."""
    return [(7 * rank + 3 * place) % 11 - 5 for place in range(count)]


def columns(n: int, count: int = 12) -> list[tuple[int, ...]]:
    """For every place the payloads of n ranks."""
    return list(zip(*(payload(rank, count) for rank in range(n)), strict=True))


def total(n: int, count: int = 12) -> list[int]:
    """The sums of every rank's payload."""
    return [sum(column) for column in columns(n, count)]


def fold(op: str, places: Iterable[Sequence[int]]) -> list[float]:
    """What the reduce op makes of the values at each place, in Python's own numbers."""
    worked_out: dict[str, Callable[[Sequence[int]], float]] = {
        "SUM": sum,
        "AVG": lambda column: sum(column) / len(column),
        "PRODUCT": math.prod,
        "MIN": min,
        "MAX": max,
        "BAND": lambda column: reduce(lambda a, b: a & b, column),
        "BOR": lambda column: reduce(lambda a, b: a | b, column),
        "BXOR": lambda column: reduce(lambda a, b: a ^ b, column),
    }
    return [worked_out[op](column) for column in places]


def tensor_of(rank: Rank, values: Any, dtype: str = "float32") -> torch.Tensor:
    """The values on the rank's device."""
    import torch

    return torch.tensor(values).to(getattr(torch, dtype)).to(rank.gpu.device)


def values_of(tensor: torch.Tensor) -> Any:
    """The tensor's values as JSON holds them; the real parts of complex ones."""
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.cpu().to(wide).real.tolist()


def or_refused(call: Callable[[], Any]) -> Any:
    """What the call gives, or that it was refused: only a typed error is a refusal."""
    try:
        return call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{REFUSED}{type(error).__name__}"


def is_refusal(found: Any) -> bool:
    """Whether a rank's value says that it was refused."""
    return isinstance(found, str) and found.startswith(REFUSED)


def each_has(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Every rank has what is expected of it."""
    for rank, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        if got != wanted:
            raise AssertionError(f"{what}: rank {rank} got {got}, not {wanted}")


def right_or_refused(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Either every rank has what is expected, or every rank has refused."""
    if not all(is_refusal(each) for each in found):
        each_has(found, expected, what)


def refused_by_all(found: Sequence[Any], what: str) -> None:
    """Every rank has refused."""
    for rank, each in enumerate(found):
        if not is_refusal(each):
            raise AssertionError(f"rank {rank} did not refuse {what}: it gave {each!r}")
