"""Autocast as a state of each thread: which blocks are open, and in which dtype operations run.

Sources: "Automatic Mixed Precision package - torch.amp" (its lists of operations for CPU and CUDA;
"autocast state is thread-local"), and torch/amp/autocast_mode.py and aten/src/ATen/autocast_mode.h
of pytorch v2.13.0: only floating-point tensors other than float64 are cast, a block without a dtype
takes the one that is set, and the cache of cast leaves ends with the outermost block. A leaf that
is changed while a block is open may be used as it was: both results are right there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from portagpu.suites.search.numbers.formats import promoted, rounded, roundoff
from portagpu.suites.search.numbers.tensors import Right, Within

if TYPE_CHECKING:
    import torch

    from portagpu.devices.contract import Backend

LOWER: Final = ("mm", "matmul", "@", "bmm", "addmm", "baddbmm", "linear")
"""Run in the block's dtype on every type of device that torch documents."""
WIDER: Final = {"cpu": ("prod", "mse_loss"), "cuda": ("prod", "mse_loss", "sum", "cumsum", "exp")}
"""Run in float32, by type of device."""
WIDEST: Final = ("cat", "stack")
"""Run in the widest dtype of their operands."""
PLAIN: Final = ("add", "mul", "neg", "relu")
"""In none of the lists: they run in the dtype of their operands."""
HALVES: Final = ("bfloat16", "float16")
DEFAULTS: Final = {"cpu": "bfloat16", "cuda": "float16"}
"""torch's dtype of a block where none was set."""
EDGE: Final = 1 + 2.0**-12
"""A float32 that is 1 in both half formats."""
BETWEEN: Final = 1 + 2.0**-9
"""A float16 that is 1 in bfloat16: it shows in which of the two a weight was cast."""
PAIRS: Final = (
    ((EDGE, -1.0, 2.0, -2 * EDGE), (1.0, 2.0, 1.0, 2.0)),
    ((1.0, -1.0, 2.0, -2.0), (EDGE, EDGE, 1.0, 1.0)),
    ((2.0, -3.0, 0.5, 4.0), (1.0, -2.0, 3.0, 0.5)),
    ((-EDGE, 1.0, EDGE, -1.0), (2.0, 4.0, 2.0, 4.0)),
)
"""Two matrices each: where their operands were not rounded, sums that should be 0 are not."""
WEIGHTS: Final = (
    (1.0, 2.0, -3.0, 0.5),
    (EDGE, BETWEEN, 2.0, -1.0),
    (BETWEEN, EDGE, EDGE, 4.0),
)


@dataclass(slots=True)
class State:
    """What is set in one thread, and the former states of the open blocks."""

    dtype: str
    enabled: bool = False
    cached: bool = True
    outer: list[tuple[str, bool, bool]] = field(default_factory=list)

    def enter(self, dtype: str | None, enabled: bool, cached: bool | None) -> None:
        self.outer.append((self.dtype, self.enabled, self.cached))
        self.dtype, self.enabled = dtype or self.dtype, enabled
        self.cached = self.cached if cached is None else cached

    def leave(self) -> bool:
        """Whether a block was open."""
        if not self.outer:
            return False
        self.dtype, self.enabled, self.cached = self.outer.pop()
        return True

    def runs(self, op: str, dtypes: list[str], device: str) -> str:
        """The dtype in which an operation of operands of those dtypes runs, and of its result."""
        eligible = self.enabled and "float64" not in dtypes
        if eligible and op in LOWER:
            return self.dtype
        if eligible and op in WIDER.get(device, ()):
            return "float32"
        found = dtypes[0]
        for each in dtypes[1:]:
            found = promoted(found, each)
        return found


def operations(gpu: Backend) -> tuple[str, ...]:
    """All whose dtype torch documents for that type of device."""
    return (*LOWER, *WIDER.get(gpu.device.type, ()), *WIDEST, *PLAIN)


def dtypes_taken(op: str, dtype: str, other: str, state: State) -> tuple[str, str]:
    """The dtypes of the operands, where torch takes those.

    Without autocast products take one dtype. With it the widest of a list may not be float64, nor
    the half format that is not the block's (``prioritize``, autocast_mode.h): that is an error.
    """
    if not state.enabled:
        return dtype, other if op in WIDEST else dtype
    if op in LOWER:
        return dtype, dtype if "float64" in (dtype, other) else other
    if op in WIDEST:
        known = {dtype, other} <= {"float32", state.dtype}
        return (dtype, other) if known else ("float32", "float32")
    return dtype, dtype


def apply(op: str, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The operation of two matrices of 2 by 2."""
    import torch

    functional: Any = torch.nn.functional
    found: Any
    if op in ("bmm", "baddbmm"):
        pair = (x.view(1, 2, 2), w.view(1, 2, 2))
        found = torch.bmm(*pair) if op == "bmm" else torch.baddbmm(pair[1], *pair)
    elif op == "addmm":
        found = torch.addmm(w, x, w)
    elif op == "linear":
        found = functional.linear(x, w.t())
    elif op == "mse_loss":
        found = functional.mse_loss(x, w, reduction="none")
    elif op in ("cat", "stack"):
        found = getattr(torch, op)([x, w])
    elif op in ("prod", "exp", "neg", "relu", "sum"):
        found = getattr(torch, op)(x)
    elif op == "@":
        found = x @ w
    elif op == "cumsum":
        found = torch.cumsum(x, 1)
    else:
        found = getattr(torch, op)(x, w)
    result: torch.Tensor = found
    return result


def right_elements(op: str, x: list[float], w: list[float], dtype: str) -> list[Right]:
    """The elements; exact but for up to four roundings where the operation takes several."""
    import math

    if op in LOWER:
        sums = [x[2 * i] * w[j] + x[2 * i + 1] * w[2 + j] for i in range(2) for j in range(2)]
        if op in ("addmm", "baddbmm"):
            sums = [a + b for a, b in zip(sums, w, strict=True)]
        return [_near(each, 60.0, dtype) for each in sums]
    if op in WIDEST:
        return [*x, *w]
    if op == "prod":
        return [_near(math.prod(x), abs(math.prod(x)), dtype)]
    if op == "sum":
        return [_near(sum(x), 12.0, dtype)]
    if op == "cumsum":
        return [_near(v, 12.0, dtype) for v in (x[0], x[0] + x[1], x[2], x[2] + x[3])]
    if op == "exp":
        return [Within(math.exp(v), 8 * roundoff(dtype) * math.exp(v)) for v in x]
    if op == "mse_loss":
        squares = [(a - b) ** 2 for a, b in zip(x, w, strict=True)]
        return [_near(each, each, dtype) for each in squares]
    if op in ("neg", "relu"):
        return [-v if op == "neg" else max(v, 0.0) for v in x]
    both = zip(x, w, strict=True)
    return [rounded(a + b if op == "add" else a * b, dtype) for a, b in both]


def gradient_of_ones(values: list[float], dtype: str) -> list[Right]:
    """The gradient of the second matrix of a product where that of the result is 1."""
    a, b, c, d = (rounded(each, dtype) for each in values)
    return [
        Within(each, roundoff(dtype) * 2 * abs(each)) for each in (a + c, b + d) for _ in range(2)
    ]


def _near(value: float, size: float, dtype: str) -> Right:
    """Half precision adds up exactly here, in float32, and rounds once or, with a bias, twice."""
    u = roundoff(dtype)
    return Within(value, 4 * u * abs(value) + 4 * min(u, 2.0**-24) * size)
